"""The soak on a real stack, short: handoffs verified, clients that leave, workers killed; and how
it ends when a stack does what none may do."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.stack import fork_stacks
from tests.soak import handoff_load
from tests.soak.handoff_load import Plan, Soak
from tests.soak.handoffs import soak

TINY = Path(__file__).resolve().parents[2] / "models" / "tiny"


def test_no_byte_no_token_and_no_page_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    fork_stacks(monkeypatch)
    plan = Plan(
        handoffs=30, concurrency=6, max_prompt=512, max_output=16, abort_share=0.2, kills=2,
        seed=1, num_ids=1_000,
    )  # fmt: skip
    arguments = ["--model", str(TINY), "--device", "cpu", "--prefill", "2", "--decode", "1"]
    settings = {"threads": "1", "num_pages": "256", "heartbeat": "0.25"}
    result = soak(plan, arguments, settings, start_s=90.0)
    assert result["passed"], result
    roles = [kill["victim"].partition("-")[0] for kill in result["kills"]]
    assert roles == ["prefill", "decode"]
    assert result["prompts_of_decode_workers"] == 0, "the other prefill worker computes them"
    assert result["handoffs"] >= plan.handoffs
    assert result["aborted"] > 0
    assert result["digests_compared"] >= result["handoffs"]
    assert sum(result["prompts_by_length"].values()) == result["finished"] + result["aborted"]
    assert min(result["selftest_bytes_per_second"].values()) > 0.0


SMALL = Plan(
    handoffs=4, concurrency=2, max_prompt=4, max_output=2, abort_share=0.0, kills=1, seed=0,
    num_ids=9, back_s=0.2, run_s=20.0,
)  # fmt: skip


class Site:
    """A stack that answers here: its one worker is gone for good once it was killed."""

    url = "http://stack"

    def __init__(self) -> None:
        self.alive = True
        self.named = "prefill-1"

    def pids(self) -> dict[str, int]:
        return {"coordinator": 1, self.named: 2}

    def kill(self, name: str) -> None:
        assert name == "prefill-1"
        self.alive = False

    async def serve(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.001)  # as any network: others get their turn
        return self.answer(request)

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/metrics":
            return httpx.Response(200, text="")
        if request.url.path == "/status":
            return httpx.Response(200, json=self.status())
        if not self.alive:
            return httpx.Response(503)
        asked = json.loads(request.content)["max_tokens"]
        line = json.dumps({"choices": [{"token_ids": [1] * asked}]})
        return httpx.Response(200, text=f"data: {line}\n\ndata: [DONE]\n\n")

    def status(self) -> dict[str, Any]:
        worker = {
            "instance": "prefill-a", "free_pages": 1, "num_pages": 1, "free_state_slots": 1,
            "num_state_slots": 1, "accounting_error": "",
        }  # fmt: skip
        return {"queued": 0, "running": 0, "workers": [worker] * self.alive}


def ended(site: Site, plan: Plan = SMALL) -> tuple[Soak, dict[str, Any]]:
    async def run() -> tuple[Soak, dict[str, Any]]:
        soak = Soak(site, plan)  # type: ignore[arg-type]
        soak._http = httpx.AsyncClient(base_url=site.url, transport=httpx.MockTransport(site.serve))
        async with asyncio.timeout(10.0):
            return soak, await soak.run()

    return asyncio.run(run())


def test_it_ends_when_a_killed_worker_does_not_come_back() -> None:
    run, left = ended(Site())
    assert run.tally.failures == ["prefill-1 was not back 0.2 s after its kill -9"]
    assert [kill["back_s"] for kill in run.kills] == [None]
    assert left["clean"]


def test_it_ends_when_nobody_is_there_to_be_killed() -> None:
    site = Site()
    site.named = "colocated-1"
    run, _ = ended(site)
    assert run.tally.failures == ["no prefill worker to kill among colocated-1, coordinator"]


def test_it_ends_when_the_status_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_load, "SETTLE_S", 0.2)

    class Mute(Site):
        asked = 0

        def status(self) -> dict[str, Any]:
            self.asked += 1
            if self.asked > 1:
                raise httpx.ReadTimeout("no answer")
            return super().status()

    run, left = ended(Mute())
    assert run.tally.failures == [
        "ReadTimeout('no answer')", "at the end: ReadTimeout('no answer')"
    ]  # fmt: skip
    assert not left["clean"]


def test_it_ends_when_its_time_is_over() -> None:
    site = Site()
    site.alive = False  # everything is refused
    run, _ = ended(site, replace(SMALL, run_s=0.2))
    assert run.tally.failures == [
        "not done within 0.2 s: 0 handoffs landed, 0 workers killed"
    ]  # fmt: skip
    assert run.tally.refused > 0
    assert run.tally.prompt_tokens == 0


def test_the_first_answer_that_is_short_ends_it() -> None:
    class Short(Site):
        def answer(self, request: httpx.Request) -> httpx.Response:
            if request.url.path != "/v1/completions":
                return super().answer(request)
            return httpx.Response(200, text='data: {"choices": [{"token_ids": [1]}]}\n\n')

    run, _ = ended(Short())
    assert run.tally.failures
    assert all(failure.startswith("1 of 2 tokens") for failure in run.tally.failures)
