"""The URL and the password of Redis."""

import pytest
from redis import Redis

from coordinator.record.settings import safe_url
from coordinator.record.store import Store
from tests.local_redis import LocalRedis

PRINTABLE = "".join(map(chr, range(33, 127))) + "é🙂 x"


@pytest.mark.parametrize(
    "url",
    [
        "", "nonsense", "localhost:6379", "http://:s3cret@host", "redis://", "redis://:s3cret@",
        "redis://host/db", "redis://:s3cret@host:port", "redis://:s3/cret@host", "unix://",
        "unix:///", "unix://relative?password=s3cret", "redis://[::1", "//:s3cret@host/",
        "redis://:s3#cret@host", "redis://:s3?cret@host",
        "redis://user:12#s3cret@host", "redis://user:1/2?s3cret@host", "redis://:s3 cret@host",
    ],
)  # fmt: skip
def test_nonsense_is_refused_by_name(url: str) -> None:
    with pytest.raises(ValueError, match="BATON_REDIS_URL") as caught:
        Store(url, "c1", "baton/1")
    assert "cret" not in str(caught.value)


async def test_a_password_of_any_characters_apart_from_the_url(
    server: LocalRedis, redis: Redis
) -> None:
    redis.config_set("requirepass", PRINTABLE)
    store = Store(server.url, "c1", "baton/1", redis_password=PRINTABLE)
    await store.start()
    assert await store.get("nobody") is None
    await store.close(1.0)
    with pytest.raises(ValueError, match="BATON_REDIS_PASSWORD: BATON_REDIS_URL holds") as caught:
        Store("redis://:s3cret@host", "c1", "baton/1", redis_password="other-s3cret")
    assert "cret" not in str(caught.value)


def test_a_url_is_shown_without_its_secrets() -> None:
    assert safe_url("redis://me:a@b@host:1/2?x=1") == "redis://***@host:1/2"
    assert safe_url("unix:///run/redis.sock?db=1&password=p") == "unix:///run/redis.sock"
