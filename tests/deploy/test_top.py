"""``baton top`` against a stub of the coordinator's HTTP."""

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from click.testing import Result
from typer.testing import CliRunner

from coordinator.http.timeline import timeline
from coordinator.record.record import RequestRecord
from deploy.cli import app
from telemetry.metrics import Metrics
from tests.coordinator.http.test_timeline import HANDED_OFF
from tests.deploy.running import DEADLINE_S, ROOT, Screen
from tests.deploy.stub_api import LOAD, STATUS, StubApi, stub_api

REQUESTS = "/v1/requests?limit=20"
TOP = ("top", "--interval", "0.1")
COMMAND = (sys.executable, "-m", "deploy.cli", *TOP)


class Service:
    """A coordinator that tells its ``metrics``, with five more output tokens at each reading."""

    def __init__(self, api: StubApi) -> None:
        self.api, self.url, self.metrics = api, api.url, Metrics("tiny")
        api.pages = {"/status": STATUS, "/status/history": LOAD, "/metrics": self.render}
        self.has_requests([])

    def render(self) -> bytes:
        self.metrics.generation_tokens.inc(5)
        return self.metrics.render()

    def has_requests(self, requests: list[Any]) -> None:
        self.api.pages[REQUESTS] = {"object": "list", "data": requests}


@pytest.fixture
def service() -> Iterator[Service]:
    with stub_api() as api:
        yield Service(api)


def once(url: str, **environ: str) -> Result:
    return CliRunner().invoke(app, [*TOP, "--once", "--url", url], env=environ)


def test_the_first_line_says_how_many_requests_have_moved(service: Service) -> None:
    service.api.pages["/status"] = {**STATUS, "moves_last_minute": 4}
    ready, *_ = once(service.url).stdout.splitlines()
    assert ready == "ready; 4 moves in the last minute (3 queued, 2 running, Redis connected)"


def test_once_prints_the_rates_of_one_interval(service: Service) -> None:
    told = once(service.url, BATON_API_KEY="k1")
    assert (told.exit_code, told.stderr) == (0, "")
    ready, speed, worker, requests = told.stdout.splitlines()
    assert ready == "ready (3 queued, 2 running, Redis connected)"
    output_tok_s = float(speed.split()[1])
    assert 10 < output_tok_s <= 51, "five tokens in 0.1 s or a little more"
    assert speed.endswith("prompts 0 tok/s  hits -  handoff 0.000 GB/s  p50 - ms  p99 - ms")
    assert worker == (
        "role=prefill  instance=p-1  device=cpu  running=1  waiting=0  pages=54/64  kv=84%  "
        "state_slots=1/8  prompt_tok_s=1,536  output_tok_s=2  hits=-  kept=0  drafts=0  "
        "tok_step=-  accepted=-  spread=-  step_ms=-  times_from=-  waits_for=-  "
        "breaker=closed  gpu=-"
    )
    assert requests == "no requests yet"
    assert set(service.api.keys) == {"Bearer k1"}


def test_top_prints_the_last_requests_with_workers_and_stages(service: Service) -> None:
    record = RequestRecord(
        request_id="0123456789abcdef", coordinator="c", state="finished", ended_at=102.0,
        **HANDED_OFF,
    )  # fmt: skip
    service.has_requests([msgspec.to_builtins(timeline(record, 102.0))])
    (told,) = once(service.url).stdout.splitlines()[3:]
    assert re.fullmatch(
        r"request=01234567  received=\d\d:\d\d:\d\d  state=finished  prompt=7  cached=5  output=3  "
        r"ttft=1.00s  took=2.00s  workers=p>d  "
        r"queue=500ms  prefill=500ms  handoff=125ms  decode=875ms",
        told,
    )
    service.api.refusals[REQUESTS] = 503, "Redis does not answer."
    assert once(service.url).stdout.splitlines()[3:] == ["no requests: Redis does not answer."]


def test_top_shows_a_gpus_temperature_and_that_a_worker_drains(service: Service) -> None:
    service.metrics.gpus.report("p-1", "prefill", "GPU-1", {"temperature_c": 86.0}, {})
    service.api.pages["/status"] = STATUS | {"workers": [STATUS["workers"][0] | {"draining": True}]}
    worker = once(service.url).stdout.splitlines()[2]
    assert "instance=p-1 (draining)  " in worker
    assert worker.endswith("  gpu=86°C")


def test_top_shows_tokens_a_step_and_the_acceptance_of_each_draft(service: Service) -> None:
    drafting = {"drafts": 2, "tokens_per_step": 2.345, "draft_acceptance": [0.881, 0.46]}
    service.api.pages["/status"] = STATUS | {"workers": [STATUS["workers"][0] | drafting]}
    worker = once(service.url).stdout.splitlines()[2]
    assert "  drafts=2  tok_step=2.35  accepted=88/46%  " in worker


def test_top_shows_an_acceptance_that_is_given(service: Service) -> None:
    first, second = (
        STATUS["workers"][0] | {"given_acceptance": 0.8, "draft_acceptance": shares}
        for shares in ([], [0.81, 0.79])
    )
    service.api.pages["/status"] = STATUS | {"workers": [first, second]}
    workers = once(service.url).stdout.splitlines()[2:4]
    assert "  accepted=given 80%  " in workers[0]
    assert "  accepted=81/79% given 80%  " in workers[1]


def test_top_shows_what_the_prefix_cache_had(service: Service) -> None:
    caching = {"queried_tokens": 4000, "reused_tokens": 3480, "kept_prefixes": 12}
    first, second = (
        STATUS["workers"][0] | caching | more for more in ({}, {"kept_prefixes_host": 40})
    )
    second["reused_tokens"] = 0
    service.api.pages["/status"] = STATUS | {"workers": [first, second]}
    _, speed, *workers = once(service.url).stdout.splitlines()[:4]
    assert "  hits 44%  " in speed, "of all prompt tokens"
    assert "  hits=87%  kept=12  " in workers[0]
    assert "  hits=0%  kept=12+40  " in workers[1]


def test_top_shows_steps_that_workers_compute_together(service: Service) -> None:
    in_group = {
        "mode": "spread", "members": ["d-1", "d-2"], "share": 0.751, "step_ms": 6.04,
        "local_step_ms": None, "aborted": 0, "wait_ms": {"d-2": 0.01, "d-3": 0.1}, "late": {},
        "left_out_s": 0.0, "within_ms": {"d-2": 0.31, "d-3": 0.1}, "saved_ms": 1.2,
        "table": "measured here",
    }  # fmt: skip
    slow = in_group | {
        "mode": "left out",
        "members": [],
        "within_ms": {},
        "share": None,
        "table": "",
    }
    workers = [STATUS["workers"][0] | {"spread": spread} for spread in (in_group, slow)]
    service.api.pages["/status"] = STATUS | {"workers": workers}
    first, second = once(service.url).stdout.splitlines()[2:4]
    assert "  spread=75%/2  step_ms=6.0/-  times_from=measured here  waits_for=d-2:0.3ms  " in first
    assert "  spread=left out  step_ms=6.0/-  times_from=-  waits_for=-  " in second


def test_once_exits_2_and_says_why_there_is_nothing(service: Service) -> None:
    told = once("http://127.0.0.1:1")
    assert told.exit_code == 2
    assert told.stderr.startswith("error: no answer from http://127.0.0.1:1: ")
    service.api.pages["/status"] = {"ok": True}
    told = once(service.url)
    assert told.exit_code == 2
    assert told.stderr == f"error: what answers at {service.url} is not Baton\n"
    service.api.refusal = 401, "no"
    told = once(service.url)
    assert told.exit_code == 2
    assert told.stderr == (
        f"error: {service.url} wants a key; set BATON_API_KEY to one of the service's API keys\n"
    )
    told = once(service.url, BATON_API_KEY="another")
    assert "does not know the key in BATON_API_KEY" in told.stderr
    assert "another" not in told.stderr


def test_top_continues_when_the_service_is_back_and_ends_with_ctrl_c(service: Service) -> None:
    service.api.refusal = 503, "busy"
    watching = subprocess.Popen(
        [*COMMAND, "--url", service.url],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert watching.stderr is not None
        assert watching.stdout is not None
        complaint = watching.stderr.readline()
        problem = f"error: {service.url} answers HTTP 503: busy"
        assert complaint == f"{problem}; trying again every 0.1 s\n"
        service.api.refusal = None
        for _ in range(2):
            assert watching.stdout.readline().startswith("ready (")
            assert watching.stdout.readline().startswith("output ")
            assert watching.stdout.readline().startswith("role=prefill")
            assert watching.stdout.readline() == "no requests yet\n"
        watching.send_signal(signal.SIGINT)
        rest = watching.communicate(timeout=DEADLINE_S)[1]
        assert watching.returncode == 0
        assert "Traceback" not in rest
    finally:
        watching.kill()
        watching.wait()


def test_a_reader_that_leaves_is_no_error(service: Service) -> None:
    with subprocess.Popen(
        [*COMMAND, "--url", service.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as watching:
        assert watching.stdout is not None
        watching.stdout.readline()
        watching.stdout.close()
        assert watching.wait(DEADLINE_S) == 0
        assert watching.stderr is not None
        assert watching.stderr.read() == b""


def test_on_a_terminal_one_table_is_redrawn(service: Service) -> None:
    here, there = pty.openpty()
    screen = Screen(here)
    watching = subprocess.Popen(
        [*COMMAND, "--url", service.url],
        stdin=there, stdout=there, stderr=there, cwd=ROOT, start_new_session=True,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "160", "LINES": "40"},
    )  # fmt: skip
    os.close(there)
    try:
        for _ in range(2):
            screen.until("3 queued")
            screen.until("slots")
            screen.until("84%")
            screen.until("no requests yet")
        service.api.refusal = 500, "broken"
        screen.until("answers HTTP 500")
        watching.send_signal(signal.SIGINT)
        screen.until("\x1b[?1049l")
        assert watching.wait(DEADLINE_S) == 0
    finally:
        watching.kill()
        watching.wait()
        os.close(here)
