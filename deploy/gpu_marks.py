"""What ``baton doctor`` says about GPUs that no worker gets: Redis holds a mark for each."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import redis

from coordinator.record import keys
from coordinator.record.redis_url import PASSWORD
from coordinator.record.unfit_gpus import how_to_clear, said
from deploy.findings import Finding
from deploy.gpus import listed_gpus
from deploy.redis_server import SOCKET
from deploy.rundir import PREFIX, base_dir
from transport.wire.secret_setting import secret_setting

_TIMEOUT_S = 5.0


def unfit_gpus(redis_url: str | None, environ: Mapping[str, str]) -> list[Finding]:
    """The marks in that Redis, or without one in those of each ``baton up`` of this user. A server
    that does not answer has nothing to say here."""
    found: dict[str, Finding] = {}
    for url in [redis_url] if redis_url is not None else _own(environ):
        try:
            password = "" if redis_url is None else secret_setting(environ, PASSWORD)
            found |= _marks(url, password)
        except (redis.RedisError, ValueError, OSError):
            continue
    here = set(listed_gpus()) if found else set()
    if here and here <= found.keys():
        advice = "see each of them; workers that start here will not get one"
        return [*found.values(), Finding("fail", "gpus", "every GPU here is unfit", advice)]
    return list(found.values())


def _own(environ: Mapping[str, str]) -> list[str]:
    try:
        base = base_dir(environ)
    except ValueError:
        return []
    return [f"unix://{path}" for path in sorted(base.glob(f"{PREFIX}*/{SOCKET}"))]


def _marks(url: str, password: str) -> dict[str, Finding]:
    where = urlsplit(url)
    redis_cli = f"redis-cli -s {where.path}" if where.scheme == "unix" else "redis-cli"
    found = {}
    with redis.Redis.from_url(
        url,
        password=password or None,
        decode_responses=True,
        socket_timeout=_TIMEOUT_S,
        socket_connect_timeout=_TIMEOUT_S,
    ) as client:
        for key in sorted(client.scan_iter(match=keys.UNFIT_GPU_PREFIX + "*")):
            why, left_ms = client.get(key), int(client.pttl(key))
            if why is None:
                continue  # it ended meanwhile
            gpu = key.removeprefix(keys.UNFIT_GPU_PREFIX)
            text = said(gpu, why, left_ms)
            found[gpu] = Finding("warn", "gpus", text, how_to_clear([gpu], redis_cli))
    return found
