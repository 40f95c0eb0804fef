"""Heavy bodies, read by processes: the same answers, in fair turns, whatever a process does."""

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any, cast

import pytest

from coordinator.http.bodies import parser_process
from coordinator.http.bodies import parsers as parsers_module
from coordinator.http.bodies.parser_process import ParserDied, ParserProcess
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.bodies.wire import Job, Reply
from coordinator.http.errors import ApiError
from tests.coordinator.fake_core import ClientOf, Says

PAD = " " * 70_000  # a body with so many spaces is heavy
JOB = Job("tokenize", None, {}, 0)


class FakeProcess:
    """Starts once ``may_start`` is set and answers with its job's body once the test lets it; notes
    the order in which bodies came."""

    begun: list[bytes]
    let: threading.Semaphore
    may_start: threading.Event
    starts_fail: bool
    num_starts: int

    def __init__(self, model: Path, deadline_s: float) -> None:
        self.killed = self.is_running = False

    def start(self) -> None:
        if self.is_running:
            return
        FakeProcess.num_starts += 1
        assert self.may_start.wait(timeout=5)
        if self.starts_fail:
            raise ParserDied("at its start")
        self.is_running = True

    def parse(self, job: Job, body: list[bytes]) -> tuple[Reply, bytes]:
        self.start()
        self.begun.append(body[0])
        assert self.let.acquire(timeout=5)
        if body == [b"dies"]:
            self.is_running = False
            raise ParserDied("by the test")
        return Reply(num_bytes=len(body[0])), body[0]

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[BodyParsers]:
    FakeProcess.begun, FakeProcess.let = [], threading.Semaphore(0)
    FakeProcess.starts_fail, FakeProcess.num_starts = False, 0
    FakeProcess.may_start = threading.Event()
    FakeProcess.may_start.set()
    monkeypatch.setattr(parsers_module, "ParserProcess", FakeProcess)
    parsers = BodyParsers(Path(), 2)
    yield parsers
    FakeProcess.may_start.set()
    FakeProcess.let.release(100)
    parsers.close()


def ask(parsers: BodyParsers, owner: str, *bodies: str) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(parsers.parse(owner, JOB, [body.encode()])) for body in bodies]


async def until_begun(num: int) -> list[bytes]:
    async with asyncio.timeout(5):
        while len(FakeProcess.begun) < num:  # noqa: ASYNC110, it is another thread's
            await asyncio.sleep(0.001)
    return FakeProcess.begun


async def test_an_owner_leaves_a_process_for_the_others(two: BodyParsers) -> None:
    many = ask(two, "many", "m1", "m2", "m3")
    await until_begun(1)
    one = ask(two, "one", "o1")
    assert await until_begun(2) == [b"m1", b"o1"]
    FakeProcess.let.release(4)
    assert await asyncio.gather(*many, *one) == [b"m1", b"m2", b"m3", b"o1"]


async def test_owners_take_turns(two: BodyParsers) -> None:
    first = ask(two, "a", "a1") + ask(two, "b", "b1")
    await until_begun(2)
    rest = ask(two, "a", "a2", "a3", "a4") + ask(two, "c", "c1") + ask(two, "d", "d1")
    await asyncio.sleep(0)
    FakeProcess.let.release(7)
    await asyncio.gather(*first, *rest)
    assert set(FakeProcess.begun[2:5]) == {b"a2", b"c1", b"d1"}
    assert FakeProcess.begun[5:] == [b"a3", b"a4"]


async def test_a_body_whose_client_left_in_the_queue_is_not_read(two: BodyParsers) -> None:
    asked = ask(two, "a", "a1", "a2", "a3")
    await until_begun(1)
    asked[1].cancel()
    asked[0].cancel()  # it is being read, and goes on to its end
    await asyncio.wait(asked[:2])
    FakeProcess.let.release(2)
    assert await asked[2] == b"a3"
    assert FakeProcess.begun == [b"a1", b"a3"]


async def test_queues_are_bounded(two: BodyParsers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsers_module, "MAX_WAITING_PER_OWNER", 2)
    monkeypatch.setattr(parsers_module, "MAX_WAITING", 3)
    asked = ask(two, "a", "a1")
    await until_begun(1)
    asked += ask(two, "a", "a2", "a3")
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await two.parse("a", JOB, [b"a4"])
    assert (refused.value.status, refused.value.headers["retry-after"]) == (429, "2")
    asked += ask(two, "b", "b1")
    await until_begun(2)
    asked += ask(two, "b", "b2")
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await two.parse("c", JOB, [b"c1"])
    assert (refused.value.status, refused.value.headers["retry-after"]) == (503, "2")
    FakeProcess.let.release(5)
    assert len(await asyncio.gather(*asked)) == 5


async def test_a_body_that_waits_too_long_is_refused(
    two: BodyParsers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ask(two, "a", "a1")
    await until_begun(1)
    monkeypatch.setattr(parsers_module, "_MAX_WAIT_S", 0.01)
    with pytest.raises(ApiError, match=r"waited 0.01 s") as refused:
        await two.parse("a", JOB, [b"a2"])
    assert refused.value.status == 503
    FakeProcess.let.release(2)
    assert await asked[0] == b"a1"
    monkeypatch.setattr(parsers_module, "_MAX_WAIT_S", 5.0)
    assert await two.parse("a", JOB, [b"a3"]) == b"a3"


async def test_a_process_that_died_costs_one_body(two: BodyParsers) -> None:
    FakeProcess.let.release(2)
    with pytest.raises(ApiError, match="could not be read") as refused:
        await two.parse("a", JOB, [b"dies"])
    assert refused.value.status == 503
    assert await two.parse("a", JOB, [b"next"]) == b"next"


async def test_a_body_is_given_the_process_that_is_free_first_not_one_that_starts(
    two: BodyParsers,
) -> None:
    first = ask(two, "a", "a1")
    await until_begun(1)
    FakeProcess.may_start.clear()
    waiting = ask(two, "b", "b1", "b2") + ask(two, "c", "c1")
    async with asyncio.timeout(5):
        while FakeProcess.num_starts < 2:  # noqa: ASYNC110, it is another thread's
            await asyncio.sleep(0.001)
    FakeProcess.let.release(2)
    assert await asyncio.gather(*first, waiting[0]) == [b"a1", b"b1"]
    assert await until_begun(3) == [b"a1", b"b1", b"c1"]
    FakeProcess.may_start.set()
    assert await until_begun(4) == [b"a1", b"b1", b"c1", b"b2"]
    FakeProcess.let.release(2)
    assert await asyncio.gather(*waiting) == [b"b1", b"b2", b"c1"]
    assert FakeProcess.num_starts == 2


async def test_a_process_that_does_not_start_refuses_bodies_until_it_does(
    two: BodyParsers, caplog: pytest.LogCaptureFixture
) -> None:
    FakeProcess.starts_fail = True
    refused = await asyncio.gather(
        *ask(two, "a", "a1"), *ask(two, "b", "b1"), return_exceptions=True
    )
    assert [cast(ApiError, error).status for error in refused] == [503, 503]
    assert "a body parser did not start" in caplog.text
    FakeProcess.starts_fail = False
    FakeProcess.let.release()
    assert await two.parse("a", JOB, [b"a2"]) == b"a2"


async def test_a_process_that_takes_too_long_is_killed_and_the_next_body_gets_another(
    checkpoint: Path,
) -> None:
    parsers = BodyParsers(checkpoint, deadline_s=0.01)  # it has not even started by then
    job = Job("tokenize", None, {"served_model_name": "tiny"}, 15)
    try:
        with pytest.raises(ApiError, match="could not be read"):
            await parsers.parse("a", job, [b'{"prompt": "x"}'])
        (used,) = [process for process in parsers._all if process._process is not None]
        assert used._process.returncode is not None
        for process in parsers._all:
            process._deadline_s = 30.0
        assert b'"count":1' in await parsers.parse("a", job, [b'{"prompt": "x"}'])
    finally:
        parsers.close()


def test_a_process_ends_with_its_coordinator(checkpoint: Path) -> None:
    process = ParserProcess(checkpoint, 30.0)
    job = Job("tokenize", None, {"served_model_name": "tiny"}, 15)
    process.parse(job, [b'{"prompt": "x"}'])
    assert process._process is not None
    assert process._process.stdin is not None
    process._process.stdin.close()  # as when the coordinator's process ends, however it does
    assert process._process.wait(timeout=10) == 0
    assert process._process.stdout is not None
    process._process.stdout.close()


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hi"}], "stop": "x", "logit_bias": {"5": 1},
         "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}, "seed": 2**60},
    ),
    "prompts": (
        "/v1/completions",
        {"prompt": ["one", "two three"], "n": 2, "echo": True, "return_token_ids": True, "seed": 1},
    ),
    "ids": ("/v1/completions", {"prompt": [[65, 66], [67]], "max_tokens": 3, "seed": 1}),
    "tokenize": ("/tokenize", {"prompt": "some text"}),
    "detokenize": ("/detokenize", {"tokens": [65, 66, 67]}),
    "wrong": ("/v1/completions", {"prompt": "x", "temperature": 3}),
    "too many": ("/v1/completions", {"prompt": "x", "n": 1000}),
    "another model": ("/tokenize", {"prompt": "x", "model": "other"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
async def test_a_heavy_body_is_answered_as_a_light_one(
    says: Says, client_of: ClientOf, name: str
) -> None:
    path, body = BODIES[name]
    core = says("The quick brown fox")
    client = client_of(core)
    light = await client.post(path, content=json.dumps(body))
    heavy = await client.post(path, content=json.dumps(body) + PAD)
    assert heavy.status_code == light.status_code
    said = [{**answer.json(), "id": "", "created": 0} for answer in (light, heavy)]
    assert said[0] == said[1]
    asked = [stream.spec for stream in core.streams]
    half = len(asked) // 2
    for one, other in zip(asked[:half], asked[half:], strict=True):
        assert (one.prompt_ids, one.sampling, one.stop, one.boundaries) == (
            other.prompt_ids, other.sampling, other.stop, other.boundaries,
        )  # fmt: skip


async def test_bodies_that_wait_are_bounded_by_owner(says: Says, client_of: ClientOf) -> None:
    client = client_of(says(), max_held_body_bytes=100_000)
    refused = await client.post("/tokenize", content=b'{"prompt": "x"}' + b" " * 60_000)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "2"
    for _ in range(3):
        answer = await client.post("/tokenize", content=b'{"prompt": "x"}' + b" " * 40_000)
        assert answer.status_code == 200


async def test_the_process_that_is_started_early_gets_the_next_body(two: BodyParsers) -> None:
    two.start_one()
    (asked,) = ask(two, "a", "one")
    await until_begun(1)
    FakeProcess.let.release()
    assert await asked == b"one"
    two.start_one()
    assert (FakeProcess.num_starts, len(two._free), len(two._not_started)) == (1, 1, 1)


def test_a_process_that_is_killed_while_it_starts_does_not_go_on(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = ParserProcess(checkpoint, 30.0)

    def killed_meanwhile(*args: Any, **kwargs: Any) -> Any:
        process.kill()
        return Popen(*args, **kwargs)

    monkeypatch.setattr(parser_process, "Popen", killed_meanwhile)
    with pytest.raises(ParserDied):
        process.start()
    assert not process.is_running


def test_a_process_that_was_started_early_is_the_one_asked(checkpoint: Path) -> None:
    process = ParserProcess(checkpoint, 30.0)
    process.start()
    started = process._process
    process.start()
    body = b'{"model": "tiny", "prompt": "Hi"}'
    job = Job("tokenize", 1024, {"served_model_name": "tiny"}, len(body))
    _, found = process.parse(job, [body])
    assert json.loads(found)["count"] > 0
    assert process._process is started
    process.kill()
