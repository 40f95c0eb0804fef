"""The course of the GPU benchmark, against servers that answer as they are told."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.environment import ROOT
from bench.harness.cannot_measure import CannotMeasure
from bench.harness.client.exchange import Exchange
from bench.harness.conduct import Session
from bench.harness.gpu import settings
from bench.harness.gpu.run import Course
from bench.harness.gpu.settings import GpuSettings
from bench.harness.progress import Progress
from bench.harness.run_control import Patience, RunControl
from bench.harness.server_info import ServerInfo

AT_A_TIME, ANSWER_S = 2, 0.02
SMALL = {"hold_s": 0.3, "start": 2, "most": 16, "least_gain": 0.5, "output_len": 5}


class Server(Progress):
    """Answers two requests at a time, each with ``num_tokens``; stands for the client, and hears
    what is told."""

    def __init__(self, num_tokens: int = 5, status: int = 200) -> None:
        self.num_open = 0
        self.open_then: dict[str, int] = {}
        self._num_tokens, self._status = num_tokens, status
        self._places = asyncio.Semaphore(AT_A_TIME)

    def say(self, text: str) -> None:
        self.open_then[text.split()[0]] = self.num_open

    async def open(self, count: int) -> None:
        pass

    def abort(self) -> None:
        pass

    async def exchange(self, ask: object) -> Exchange:
        exchange = Exchange(perf_counter())
        self.num_open += 1
        async with self._places:
            await asyncio.sleep(ANSWER_S)
        self.num_open -= 1
        usage = {"prompt_tokens": 3, "completion_tokens": self._num_tokens, "total_tokens": 8}
        exchange.status = self._status
        body = {"choices": [{"text": "x", "finish_reason": "length"}], "usage": usage}
        exchange.pieces.append((perf_counter(), json.dumps(body).encode()))
        exchange.end()
        return exchange


def course(server: Server, **changes: Any) -> Course:
    client, info = cast(Any, server), ServerInfo("http://h:1", "some", None, None, None)
    control = RunControl(client, Patience(give_up_after=4))
    given = Session(client, client, info, control, server)
    return Course(GpuSettings(**{**SMALL, **changes}), given)


async def test_the_hold_begins_when_nothing_waits_behind_a_higher_step() -> None:
    server = Server()
    held = await course(server).run()
    assert [step.concurrency for step in held.steps] == [2, 4]
    assert held.best.concurrency == 2
    assert server.open_then["holding"] == 0
    during = [span for span in held.spans if held.begin_s < span.end_s < held.end_s]
    assert max(span.end_s - span.begin_s for span in during) < 3 * ANSWER_S
    assert held.end_s - held.begin_s == pytest.approx(0.3)
    assert (held.failures, server.num_open) == ([], 0)


async def test_given_levels_are_all_tried_and_the_best_is_held() -> None:
    held = await course(Server(), levels=(1, 3, 6), rounds=2).run()
    assert [step.concurrency for step in held.steps] == [1, 3, 6]
    assert held.best.concurrency == 3


def test_random_weights_need_a_configuration_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    served_files = set[str]()

    @contextmanager
    def running(folder: Path, *_: str, **__: Any) -> Iterator[Any]:
        served_files.update(file.name for file in folder.iterdir())
        assert folder.name == "qwen3-0.6b"
        yield SimpleNamespace(url="http://h:1")

    monkeypatch.setattr(settings, "running", running)
    folder = ROOT / "bench/models/qwen3-0.6b"
    with settings.served(GpuSettings(checkpoint=folder), None) as url:
        assert url == "http://h:1"
    assert served_files >= {"config.json", "tokenizer.json", "chat_template.jinja"}
    with settings.served(GpuSettings(checkpoint=folder, load_format="auto"), "http://h:2") as url:
        assert url == "http://h:2"


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ({"status": 500}, "given up after 4 failures in a row, the last: HTTP 500; the last"),
        ({"num_tokens": 4}, "0 of 8 requests; the last failure: 4 tokens, not 5"),
    ],
)
async def test_a_server_that_only_fails_is_named_with_its_words(
    server: dict[str, int], said: str
) -> None:
    with pytest.raises(CannotMeasure, match=said):
        await course(Server(**server)).run()


async def test_a_server_that_stalls_ends_the_run_in_time() -> None:
    with pytest.raises(CannotMeasure, match="0 of 8 requests were answered within 0 s"):
        await course(Server(), step_limit_s=0.001).run()


async def test_a_failure_now_and_then_is_counted_and_the_run_goes_on() -> None:
    class Sometimes(Server):
        turn = 0

        async def exchange(self, ask: object) -> Exchange:
            self.turn += 1
            found = await super().exchange(ask)
            found.status = 500 if self.turn % 5 == 0 else 200
            return found

    held = await course(Sometimes(), most=2).run()
    assert len(held.spans) > len(held.failures) > 0
    assert held.failures[0].startswith("http: HTTP 500")


@pytest.mark.parametrize(
    "wrong", [{"start": 0}, {"start": 9, "most": 8}, {"least_gain": 0.0}, {"levels": (3, 3)}]
)
def test_settings_that_make_no_sense_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GpuSettings(**wrong)
