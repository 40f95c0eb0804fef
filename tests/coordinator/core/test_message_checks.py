"""What in workers' messages is refused."""

import pytest

from coordinator.core.contract import SequenceRequest
from coordinator.core.message_checks import kept_problem, prefilled_problem, rows_problem
from coordinator.core.request import Request, State
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.memory_export import MemoryExport
from transport.wire.messages import Hello, Prefilled, Role, TokenOut
from transport.wire.offers import KeptPrefix, Offer
from transport.wire.prompt_logprobs import PromptLogprobs
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed

MEMORY = MemoryExport("shm", "h", 1, CacheLayout("float32", 16, *[1] * 9), PoolSize(8, 4))


GOOD = Offer("p-1", (0, 7), 3, 1, 20)


def worker_of(role: Role = "prefill") -> Worker:
    return Registry().add(Hello("p-1", role, "m", "cpu", 1, 128, 8, MEMORY), 0.0)


def problem(
    offer: Offer | None, *, role: Role = "prefill", attempt: int = 1, num_reused: int = 0
) -> str:
    spec = SequenceRequest("r", packed(range(20)), SamplingParams(), StopRule(4))
    request = Request(spec, 1, State.PREFILLING, attempt=1, prefill_worker="p-1")
    message = Prefilled(TokenOut("r", attempt, 0, 7), offer, 1.0, 2.0, num_reused)
    return prefilled_problem(message, worker_of(role), request)


@pytest.mark.parametrize(
    ("offer", "part"),
    [
        (Offer("p-2", (0, 7), 3, 1, 20), "p-2's memory"),
        (Offer("p-1", (0, 7), 3, 1, 19), "19 tokens, ordered were 20"),
        (Offer("p-1", (0,), 3, 1, 20), "1 pages, not 2"),
        (Offer("p-1", (0, 8), 3, 1, 20), "page 8, of 8"),
        (Offer("p-1", (0, 7), 4, 1, 20), "state slot 4, of 4"),
    ],
)
def test_a_wrong_offer_is_named(offer: Offer, part: str) -> None:
    assert part in problem(offer)
    assert problem(offer, attempt=0) == "", "stale, so dropped as such"


def test_a_right_one_passes() -> None:
    assert problem(GOOD) == problem(None) == ""


def test_a_colocated_worker_offers_nothing() -> None:
    assert "role colocated" in problem(GOOD, role="colocated")


def test_a_token_of_the_order_was_computed() -> None:
    assert problem(GOOD, num_reused=19) == ""
    assert problem(GOOD, num_reused=20) == "20 tokens reused, ordered were 20"


def kept_problem_of(
    num_tokens: int = 20, pages_key: bytes = bytes(16), offer: Offer | None = GOOD
) -> str:
    kept = KeptPrefix(b"k" * 16, pages_key, num_tokens, offer)
    return kept_problem(kept, worker_of("decode"))


@pytest.mark.parametrize(
    ("offer", "part"),
    [
        (GOOD, ""),
        (None, ""),
        (Offer("p-2", (0, 7), 3, 1, 20), "p-2's memory"),
        (Offer("p-1", (0, 7), 3, 1, 19), "19 tokens, of a prefix of 20"),
        (Offer("p-1", (0,), 3, 1, 20), "1 pages, not 2"),
        (Offer("p-1", (0, 8), 3, 1, 20), "page 8, of 8"),
        (Offer("p-1", (0, 7), 4, 1, 20), "state slot 4, of 4"),
    ],
)
def test_a_wrong_offer_of_a_kept_prefix_is_named(offer: Offer | None, part: str) -> None:
    found = kept_problem_of(offer=offer)
    assert (part in found) if part else not found


def test_a_kept_prefix_fits_its_worker_and_its_keys() -> None:
    assert kept_problem_of(128, b"k" * 16, None) == ""
    assert "144 tokens, of 128" in kept_problem_of(144, b"k" * 16, None)
    assert "another length" in kept_problem_of(20, b"k" * 16)
    assert "another length" in kept_problem_of(32, bytes(16))


def test_only_a_kept_prefix_without_states_has_the_keys_of_its_pages() -> None:
    layout = CacheLayout("float32", 16, 1, 1, 1, 0, 0, 0, 0, 0, 0)
    memory = MemoryExport("shm", "h", 1, layout, PoolSize(8, 4))
    worker = Registry().add(Hello("p-1", "decode", "m", "cpu", 1, 128, 8, memory), 0.0)
    first, second = b"1" * 16, b"2" * 16

    def problem_of(*page_keys: bytes) -> str:
        offer = Offer("p-1", (0, 7), 4 + 7, 1, 32)
        return kept_problem(KeptPrefix(second, second, 32, offer, page_keys), worker)

    assert problem_of(first, second) == ""
    assert "0 keys of pages" in problem_of()
    assert "1 keys of pages" in problem_of(second)
    assert "2 keys of pages" in problem_of(second, first)
    with_states = KeptPrefix(second, second, 32, None, (first, second))
    assert "2 keys of pages" in kept_problem(with_states, worker_of("decode"))


ASKED = SequenceRequest("r", packed(range(20)), SamplingParams(prompt_logprobs=1), StopRule(4))


@pytest.mark.parametrize(
    ("start", "num_bytes", "part"),
    [
        (1, 0, "0 bytes"),
        (1, 24, "24 bytes of log-probabilities, of 16 a token"),
        (20, 16, "tokens 20 to 20"),
        (1, 20 * 16, "tokens 1 to 20"),
        (1, 19 * 16, ""),
        (19, 16, ""),
    ],
)
def test_wrong_log_probabilities_are_named(start: int, num_bytes: int, part: str) -> None:
    found = rows_problem(PromptLogprobs("r", 1, start, bytes(num_bytes)), Request(ASKED, 1))
    assert (part in found) if part else not found


def test_log_probabilities_that_were_not_asked_for_are_a_workers_fault() -> None:
    spec = SequenceRequest("r", packed(range(20)), SamplingParams(), StopRule(4))
    message = PromptLogprobs("r", 1, 1, bytes(16))
    assert "did not ask" in rows_problem(message, Request(spec, 1))


def test_a_prompt_is_not_done_before_all_its_log_probabilities_are_here() -> None:
    worker = worker_of()
    request = Request(ASKED, 1, State.PREFILLING, attempt=1, prefill_worker="p-1")
    message = Prefilled(TokenOut("r", 1, 0, 7), GOOD, 1.0, 2.0)
    assert request.take_prompt_rows(PromptLogprobs("r", 1, 1, bytes(18 * 16)))
    assert prefilled_problem(message, worker, request) == "log-probabilities of 18 of 19 tokens"
    assert not request.take_prompt_rows(PromptLogprobs("r", 1, 1, bytes(16))), "given before"
    assert request.take_prompt_rows(PromptLogprobs("r", 1, 19, bytes(16)))
    assert prefilled_problem(message, worker, request) == ""
