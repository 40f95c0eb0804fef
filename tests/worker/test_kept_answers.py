"""What is hashed when the end of an answer is kept."""

import pytest

from tests.simulation.fake_engine import LAYOUT
from tests.worker.test_published_prefixes import a_worker
from transport.wire import prefix
from transport.wire.messages import Generate, Prefilled
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed, to_wire

PAGE = LAYOUT.page_size


def test_only_the_pages_of_an_answer_are_hashed_when_it_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list = []
    worker = a_worker(sent)
    prompt = packed(n % 60 for n in range(20 * PAGE + 3))
    order = to_wire(prompt)
    worker.handle(Generate("r", 1, 1, order, len(prompt), SamplingParams(), StopRule(PAGE + 6)))
    while not any(isinstance(m, Prefilled) for m in sent):
        worker.step()
    num_hashed = 0
    blake2b = prefix.blake2b

    def counting(*args, **kwargs):
        nonlocal num_hashed
        num_hashed += 1
        return blake2b(*args, **kwargs)

    monkeypatch.setattr(prefix, "blake2b", counting)
    while not worker.empty:
        worker.step()
    assert max(kept.num_tokens for kept in worker._room.allocator.kept) > 21 * PAGE
    assert num_hashed <= 3, "of 22 pages: the one that the answer has filled, and its tail"
