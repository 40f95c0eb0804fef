"""What does not fit is refused at the door, in words that name it; what runs goes on."""

import asyncio
import json
import re
import shutil
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.record.presence import ProtocolConflict
from coordinator.record.store import Store
from tests.e2e.forks import Fork
from tests.e2e.refusals import EXIT_S, reach, refusal, up
from tests.e2e.served import served
from tests.e2e.stack import Stack, environment
from tests.e2e.streams import Stream
from tests.engine.checkpoints import with_draft_layer
from tests.local_redis import LocalRedis
from tests.transport.received import received
from transport.wire.channel import CoordinatorChannel, WorkerChannel
from transport.wire.channel_keys import channel_keys
from transport.wire.errors import ProtocolMismatch
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import PROTOCOL, Hello, Refused

OTHER = "baton/0"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """A copy of a checkpoint, to be damaged."""
    return Path(shutil.copytree(served("per_expert"), tmp_path / "broken"))


async def still_serves(baton: Stack) -> None:
    answer = await Stream(baton.url, [1, 2, 3], max_tokens=5).ended()
    assert len(answer.token_ids) == 5
    await baton.idle(num_workers=2)


# ---- checkpoints


def test_checkpoint_that_is_not_there() -> None:
    assert "--model: /nowhere/model" in up("--model", "/nowhere/model")


def test_truncated_weights(broken: Path) -> None:
    weights = broken / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    assert str(weights) in up("--model", str(broken))


def test_another_architecture(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    config |= {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
    (broken / "config.json").write_text(json.dumps(config))
    assert "gpt2" in refusal("decode", coordinator=f"ipc://{broken}/c.sock", model=broken)


# ---- neighbours


def test_redis_that_does_not_answer() -> None:
    model = str(served("per_expert"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        message = up("--model", model, "--redis-url", url)
        assert url in message
        assert "did not answer" in message
    assert url in up("--model", model, "--redis-url", url)  # now nobody listens


def test_port_in_use(baton: Stack) -> None:
    port = baton.url.rsplit(":", 1)[1]
    assert f"{port} on 127.0.0.1 is in use" in up(
        "--model", str(served("per_expert")), "--port", port
    )


async def test_two_coordinators_of_different_versions(redis_server: LocalRedis) -> None:
    """The one that comes second is refused, whichever it is."""
    settings = {"model": served("per_expert"), "redis_url": redis_server.url, "port": 0}
    first = Store(redis_server.url, "coordinator-first", OTHER)
    await first.start()
    try:
        bind = f"ipc://{Path(redis_server.url.removeprefix('unix://')).parent}/c.sock"
        message = await asyncio.to_thread(refusal, "coordinator", bind=bind, **settings)
        assert re.search(f"{PROTOCOL}.*coordinator-first.*{OTHER}", message)
        assert first.connected
    finally:
        await first.close(1.0)


async def test_second_coordinator_of_another_version(baton: Stack) -> None:
    url = baton.redis_url
    with pytest.raises(ProtocolConflict, match=f"{OTHER}.*{PROTOCOL}"):
        await Store(url, "coordinator-second", OTHER).start()
    await still_serves(baton)


async def test_worker_of_another_wire_version(baton: Stack) -> None:
    pools = PoolSize(4, 4)
    memory = MemoryExport("shm", "h", 1, CacheLayout("float32", 16, *[1] * 9), pools)
    keys = channel_keys(baton.channel_secret)
    channel = WorkerChannel(baton.endpoint, "prefill-other", keys=keys, protocol=OTHER)
    try:
        channel.send(Hello("prefill-other", "prefill", "m", "cpu", 1, 64, 4, memory))
        with pytest.raises(ProtocolMismatch, match=f"{OTHER}.*{PROTOCOL}"):
            await asyncio.to_thread(channel.receive, 5.0)
    finally:
        channel.close()
    baton.until(f"refused prefill-other.*{PROTOCOL}.*{OTHER}", 10.0)
    await still_serves(baton)


async def test_coordinator_of_another_wire_version(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/c.sock"
    channel = CoordinatorChannel(endpoint, protocol=OTHER)
    try:
        worker = asyncio.create_task(
            asyncio.to_thread(refusal, "decode", coordinator=endpoint, model=served("per_expert"))
        )
        async with asyncio.timeout(EXIT_S):
            instance, hello = await received(channel, EXIT_S)
            assert isinstance(hello, ProtocolMismatch)
            channel.send(instance, Refused(str(hello)))
            assert re.search(f"{PROTOCOL}.*{OTHER}", await worker)
    finally:
        channel.close()


async def test_worker_is_told_to_stop_before_anybody_welcomed_it(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/c.sock"
    channel = CoordinatorChannel(endpoint)
    settings = environment(coordinator=endpoint, model=served("per_expert"))
    worker = Fork([sys.executable, "-m", "decode"], settings)
    try:
        async with asyncio.timeout(EXIT_S):
            await received(channel, EXIT_S)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 4.0) == 0
    finally:
        worker.kill()
        worker.stdout.close()
        channel.close()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_worker_with_another_cache_layout(baton: Stack, role: str) -> None:
    settings = {"model": served("per_expert"), **reach(baton), "page_size": 32}
    message = await asyncio.to_thread(refusal, role, **settings)
    assert "page_size 16 here, 32 at" in message
    await still_serves(baton)


async def test_worker_with_another_model(baton: Stack) -> None:
    settings = {"model": served("odd"), **reach(baton), "page_size": 16}
    assert "model mismatch" in await asyncio.to_thread(refusal, "decode", **settings)
    await still_serves(baton)


async def test_worker_that_makes_drafts_beside_workers_without(baton: Stack) -> None:
    served("per_expert")
    settings = {"model": with_draft_layer("per_expert"), **reach(baton), "page_size": 16}
    message = await asyncio.to_thread(refusal, "decode", **settings)
    assert "only one of them makes drafts" in message
    assert "BATON_SPECULATE" in message
    await still_serves(baton)


# ---- clients

BAD_BODIES: list[tuple[str, bytes | dict[str, Any], int]] = [
    ("completions", b"{", 400),
    ("completions", b"", 400),
    ("completions", b'"text"', 400),
    ("completions", b"\xff\xfe", 400),
    ("completions", {}, 400),
    ("completions", {"prompt": []}, 400),
    ("completions", {"prompt": [[]]}, 400),
    ("completions", {"prompt": [1, "two"]}, 400),
    ("completions", {"prompt": [-1]}, 400),
    ("completions", {"prompt": [10**9]}, 400),
    ("completions", {"prompt": [1] * 5000}, 400),
    ("completions", {"prompt": "x", "max_tokens": -1}, 400),
    ("completions", {"prompt": "x", "max_tokens": 10**6}, 400),
    ("completions", {"prompt": "x", "temperature": "hot"}, 400),
    ("completions", {"prompt": "x", "n": 10**6}, 400),
    ("completions", {"prompt": "x", "logit_bias": {"9999": 1}}, 400),
    ("completions", {"prompt": "x", "stop": [""]}, 400),
    ("completions", {"prompt": "x", "suffix": "y"}, 400),
    ("completions", {"prompt": "x", "model": "other"}, 404),
    ("chat/completions", {"messages": []}, 400),
    ("chat/completions", {"messages": [{"role": "wizard", "content": "x"}]}, 400),
    ("chat/completions", {"messages": [{"role": "user"}]}, 400),
    ("chat/completions", {"messages": "x"}, 400),
    ("nowhere", {}, 404),
]


async def test_a_host_that_a_web_page_could_have_is_misdirected(baton: Stack) -> None:
    """The stack has no keys and listens on a loopback address."""
    async with httpx.AsyncClient(base_url=baton.url, timeout=10.0) as client:
        answer = await client.get("/v1/models", headers={"host": "evil.example"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")
        local = await client.get("/v1/models", headers={"host": "localhost:1"})
        assert local.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_bad_requests(baton: Stack, stream: bool) -> None:
    async with httpx.AsyncClient(
        base_url=f"{baton.url}/v1", timeout=10.0, headers={"content-type": "application/json"}
    ) as http:
        for path, body, status in BAD_BODIES:
            if isinstance(body, dict):
                answer = await http.post(f"/{path}", json=body | {"stream": stream})
            else:
                answer = await http.post(f"/{path}", content=body)
            assert answer.status_code == status, (path, body, answer.text)
            assert answer.json()["error"]["message"], (path, body)
            assert len(answer.content) < 4096
    await still_serves(baton)
