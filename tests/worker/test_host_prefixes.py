"""A worker's prompts begin with prefixes that only its host memory has."""

import pytest

from engine.cache.kept import KeptPrefix
from tests.engine.late_host_copies import LateHostCopier
from tests.simulation.fake_engine import expected_output
from tests.worker.test_published_prefixes import a_worker
from transport.wire.messages import Generate, Prefilled, Tokens
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.session import LOST
from transport.wire.token_ids import packed, to_wire
from worker.worker import Worker

BEGIN = tuple(n % 60 for n in range(200))
STOP = StopRule(4)


class Site:
    def __init__(self) -> None:
        self.sent: list = []
        self.worker: Worker = a_worker(self.sent, num_blocks=200)
        self.copier: LateHostCopier = self.worker._room.prefixes.host._copier

    def submit(self, name: str, prompt: tuple[int, ...]) -> None:
        order = Generate(name, 1, 1, to_wire(packed(prompt)), len(prompt), SamplingParams(), STOP)
        self.worker.handle(order)

    def run(self, *, copying: bool = True) -> None:
        for _ in range(60):
            self.worker.step()
            if copying:
                self.copier.end_all()

    def keep_only_on_the_host(self, prompt: tuple[int, ...]) -> KeptPrefix:
        """All of the prompt has left the device; returns the longest."""
        host = self.worker._room.prefixes.host
        before, host.ahead = host.ahead, self.worker._room.allocator.size
        self.submit("first", prompt)
        self.run()
        self.sent.clear()
        assert not len(self.worker._room.allocator.kept)
        host.ahead = before
        return max(host, key=lambda kept: kept.num_tokens)

    @property
    def reused(self) -> dict[str, tuple[str, int]]:
        found = (m for m in self.sent if isinstance(m, Prefilled))
        return {m.token.request_id: (m.reused, m.num_reused) for m in found}

    def text(self, name: str) -> list[int]:
        first = [m.token for m in self.sent if isinstance(m, Prefilled)]
        later = [token for m in self.sent if isinstance(m, Tokens) for token in m.tokens]
        return [token.token_id for token in [*first, *later] if token.request_id == name]


@pytest.fixture
def site() -> Site:
    return Site()


def test_prompts_that_come_together_copy_a_common_prefix_once(site: Site) -> None:
    site.keep_only_on_the_host(BEGIN)
    prompts = {f"r{n}": (*BEGIN[:195], n, n + 1, n + 2) for n in range(5)}
    for name, prompt in prompts.items():
        site.submit(name, prompt)
    fetches = []
    for _ in range(60):
        site.worker.step()
        fetches += [copy for _, copy in site.worker._room.prefixes.host._fetching]
        site.copier.end_all()
    assert len(set(fetches)) == 1
    assert site.reused["r0"] == ("host", 192)
    assert {site.reused[f"r{n}"] for n in range(1, 5)} == {("gpu", 192)}
    for name, prompt in prompts.items():
        assert site.text(name) == expected_output(prompt, STOP)
    gauges = site.worker.gauges()
    assert gauges.accounting_error == ""
    assert gauges.prefix.reused_host == 192


def test_an_answers_end_inside_a_page_comes_back_and_is_written_on(site: Site) -> None:
    kept = site.keep_only_on_the_host(BEGIN)
    assert kept.num_tokens % 16
    assert kept.num_tokens > len(BEGIN)
    onwards = (*BEGIN, *expected_output(BEGIN, STOP), 5, 6, 7)
    for name in ("again", "once more"):
        site.submit(name, onwards)
        site.run()
        assert site.text(name) == expected_output(onwards, STOP)
    assert site.reused["again"] == ("host", kept.num_tokens)
    assert site.reused["once more"][0] == "gpu"


def test_a_request_cancelled_during_its_fetch_leaves_the_prefix_on_the_device(site: Site) -> None:
    site.keep_only_on_the_host(BEGIN)
    site.submit("cancelled", (*BEGIN[:195], 1))
    site.run(copying=False)
    assert site.copier.under_way
    assert not site.worker.empty
    site.worker.handle(LOST)
    site.run()
    assert site.worker.empty
    assert [kept.num_tokens for kept in site.worker._room.allocator.kept] == [192]
    gauges = site.worker.gauges()
    assert gauges.accounting_error == ""
    assert (gauges.free_pages, gauges.free_state_slots) == (40, 8)


def test_a_fetch_past_its_deadline_fails_the_request_and_frees_the_memory_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.keep_only_on_the_host(BEGIN)
    site.submit("late", (*BEGIN[:195], 1))
    site.run(copying=False)
    monkeypatch.setattr(site.worker._room.prefixes.pulls.copies, "_clock", lambda: 1e9)
    site.run(copying=False)
    assert [m.code for m in site.sent if hasattr(m, "code")] == ["pull_timeout"]
    assert not site.worker.empty
    site.run()
    assert site.worker.empty
    assert site.worker.gauges().accounting_error == ""
