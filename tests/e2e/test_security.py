"""A whole system with keys: who has one is served, nobody else learns or joins anything."""

import asyncio
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import openai
import pytest
import zmq
import zmq.asyncio

from bench.stack import setting
from tests.e2e.conftest import ending_well
from tests.e2e.refusals import reach, refusal, up
from tests.e2e.served import served
from tests.e2e.stack import Stack
from tests.e2e.streams import Stream
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import PROTOCOL, Goodbye, Hello, encode

MODEL = "per_expert"
NAMES = ("right", "rare", "other", "wrong")
RIGHT, RARE, OTHER, WRONG = (f"sk-{name}-0123456789abcdef" for name in NAMES)
SECRET = "a secret that only this test knows, 0123456789"
QUESTION = [{"role": "user", "content": "What is left?"}]


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "api-keys"
    path.write_text(f"# clients\nright:{RIGHT}\nrare:{RARE}:2\nother:{OTHER}:::2\n")
    path.chmod(stat.S_IRUSR)
    return path


@pytest.fixture(scope="module")
def locked(keys_file: Path) -> Iterator[Stack]:
    """A stack with keys; whatever its tests did, its secrets are nowhere to be read."""
    stack = Stack(
        served(MODEL), heartbeat=0.25, page_size=16, num_pages=256, log_level="debug",
        api_keys_file=keys_file, channel_secret=SECRET,
    )  # fmt: skip
    with ending_well(stack):
        yield stack
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in stack.pids().values()]
        assert len(commands) == 3
    for secret in (RIGHT, RARE, OTHER, WRONG, SECRET):
        assert secret not in stack.text
        assert not any(secret.encode() in command for command in commands)


@pytest.fixture
async def http(locked: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": f"Bearer {RIGHT}"}
    async with httpx.AsyncClient(base_url=locked.url, headers=headers, timeout=10.0) as client:
        yield client


async def test_a_key_does_not_wait_for_all_requests_of_another_one(
    locked: Stack, http: httpx.AsyncClient
) -> None:
    """Of sixty requests that fill the worker, few are given a token before the other key's. One
    client sends them: sixty would take a second to be made, and the worker be done with many. Each
    leaves when it has a token and the other key has one."""
    answered = asyncio.Event()

    async def ask(client: httpx.AsyncClient, key: str, number: int, max_tokens: int) -> float:
        headers = {"authorization": f"Bearer {key}"}
        body = {
            "prompt": [1 + (number + n) % 99 for n in range(200)], "max_tokens": max_tokens,
            "ignore_eos": True, "stream": True,
        }  # fmt: skip
        async with client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
            answer.raise_for_status()
            lines = answer.aiter_lines()
            await anext(lines)
            at = time.monotonic()
            async for _ in lines:
                if answered.is_set():
                    break
        return at

    unshared = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=locked.url, timeout=60.0, limits=unshared) as client:
        flood = [asyncio.create_task(ask(client, RIGHT, number, 400)) for number in range(60)]
        async with asyncio.timeout(30.0):
            while (await http.get("/status")).json()["queued"] < 20:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        first_at = await ask(client, OTHER, 100, 2)
        answered.set()
        began = await asyncio.gather(*flood)
    assert sum(at > first_at for at in began) >= 10


async def chat(stack: Stack, key: str, **fields: object) -> str:
    async with openai.AsyncOpenAI(
        base_url=f"{stack.url}/v1", api_key=key, max_retries=0, timeout=30.0
    ) as client:
        answer = await client.chat.completions.create(
            model=MODEL, messages=QUESTION, temperature=0, max_tokens=8, **fields
        )
        if not fields:
            return str(answer.choices[0].message.content)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])


async def test_openai_python_with_a_right_and_a_wrong_key(locked: Stack) -> None:
    assert await chat(locked, RIGHT) == await chat(locked, RIGHT, stream=True) != ""
    with pytest.raises(openai.AuthenticationError, match="not one of this server's"):
        await chat(locked, WRONG)


async def test_a_quota_is_told_with_a_time_to_come_back(locked: Stack) -> None:
    for _ in range(2):
        await chat(locked, RARE)
    with pytest.raises(openai.RateLimitError, match="2 requests a minute") as refused:
        await chat(locked, RARE)
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 30
    await chat(locked, RIGHT)


async def test_probes_need_no_key_and_tell_no_secret(locked: Stack) -> None:
    async with httpx.AsyncClient(base_url=locked.url, timeout=10.0) as client:
        for path in ("/health", "/ready", "/metrics"):
            answer = await client.get(path)
            assert answer.status_code == 200
            assert not [s for s in (RIGHT, RARE, SECRET) if s in answer.text]
        for path in ("/status", "/v1/models", "/openapi.json"):
            assert (await client.get(path)).status_code == 401
            bare = await client.get(path, headers={"authorization": "Bearer"})
            assert bare.status_code == 401


async def test_a_stranger_can_neither_register_nor_listen(
    locked: Stack, http: httpx.AsyncClient
) -> None:
    workers = (await http.get("/status")).json()["workers"]
    memory = MemoryExport("shm", "h", 1, CacheLayout("float32", 16, *[1] * 9), PoolSize(4, 4))
    instance = workers[0]["instance"]  # a stranger may even know the name of a worker
    context = zmq.asyncio.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.IDENTITY, instance.encode())
    stranger.connect(locked.endpoint)
    try:
        for message in (
            Hello(instance, "prefill", "m", "cpu", 1, 64, 4, memory),
            Hello("prefill-mine", "prefill", "m", "cpu", 1, 64, 4, memory),
            Goodbye(),
        ):
            with suppress(zmq.Again):  # it may have been refused already, and then takes nothing
                await stranger.send_multipart([PROTOCOL.encode(), encode(message)], zmq.NOBLOCK)
        for _ in range(3):
            await chat(locked, RIGHT)  # its prompt goes to a worker meanwhile
        assert not await stranger.poll(0)
    finally:
        stranger.close(linger=0)
        context.term()
    found = (await http.get("/status")).json()
    assert [w["instance"] for w in found["workers"]] == [w["instance"] for w in workers]
    assert found["problems"] == []


@pytest.mark.parametrize("secret", [None, "a guess, long enough to be one, but wrong"])
async def test_a_worker_without_the_secret_says_what_is_wrong(
    locked: Stack, secret: str | None
) -> None:
    settings = {"model": served(MODEL), **reach(locked), "page_size": 16}
    if secret is None:
        del settings["channel_secret"]
    else:
        settings["channel_secret"] = secret
    message = await asyncio.to_thread(refusal, "decode", **settings)
    assert "BATON_CHANNEL_SECRET" in message
    assert "a guess" not in message


async def test_a_worker_with_the_secret_may_join(locked: Stack, http: httpx.AsyncClient) -> None:
    """It gets as far as its cache being looked at: the handshake let it in."""
    settings = {"model": served(MODEL), **reach(locked), "page_size": 32}
    assert "page_size 16 here, 32 at" in await asyncio.to_thread(refusal, "decode", **settings)


def test_secrets_that_will_not_do(tmp_path: Path) -> None:
    bad = f"right:{RIGHT}\nright:{WRONG}\n"
    message = up("--model", str(served(MODEL)), api_keys=bad)
    assert "BATON_API_KEYS: line 2: has the same name as line 1" in message
    assert not [secret for secret in (RIGHT, WRONG) if secret in message]
    needed = {"model": served(MODEL), "redis_url": "redis://127.0.0.1:1"}
    message = refusal("coordinator", api_keys_file=tmp_path / "none", **needed)
    assert "BATON_API_KEYS_FILE: cannot read the file that it names: No such file" in message
    message = refusal("coordinator", channel_secret="hunter2", **needed)
    assert "BATON_CHANNEL_SECRET: has 7 characters" in message


def test_an_open_channel_is_not_bound_to_the_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}"
        settings = {"model": served(MODEL), "redis_url": url, "port": 0}
        message = refusal("coordinator", bind="tcp://0.0.0.0:0", **settings)
    assert message.startswith("error: bind: tcp://0.0.0.0:0 can be reached")
    message = refusal("prefill", model=served(MODEL), coordinator="tcp://10.0.0.1:5555")
    assert message.startswith("error: coordinator: tcp://10.0.0.1:5555 can be reached")


async def test_every_run_has_a_secret_of_its_own(baton: Stack) -> None:
    secrets = {setting(pid, "BATON_CHANNEL_SECRET") for pid in baton.pids().values()}
    assert [len(secret) for secret in secrets] == [64]
    assert secrets != {os.environ.get("BATON_CHANNEL_SECRET")}
    assert not secrets & set(baton.text.split())
    answer = await Stream(baton.url, [1, 2, 3], max_tokens=5).ended()
    assert len(answer.token_ids) == 5
