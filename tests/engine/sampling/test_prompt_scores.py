"""Log-probabilities of prompts are transformers', whatever chunks and company a prompt has."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from msgspec.structs import replace as replace_fields

from engine.batch import Binding, ForwardBatch, Row, Sampled, Scoring, passes
from engine.kernels.reference import ReferenceKernels
from engine.runner import Engine
from engine.sampling import prompt_scores
from engine.sequence import Sequence as Placed
from tests.engine.bundled_truth import TINY, prompt_truth, text_ids
from tests.engine.driver import GREEDY, UNLIMITED, load_engine
from transport.wire.messages import Prefill
from transport.wire.prompt_logprobs import TokenScore, read_rows
from transport.wire.token_ids import packed, to_wire

NUM_TOP = 20
ATOL = 3e-4
"""Between two orders of float32 sums over a thousand tokens; logits here are as large as 40."""
LENGTH = 64 * 5 + 17
CUTS = [[], [64], [64, 128, 192, 256, 320], [128, 320], [256]]


@cache
def engine() -> Engine:
    return load_engine(TINY)


def placed(ids: Sequence[int], *, num_scored: int = 0, num_output: int = 0) -> Placed:
    sampling = replace_fields(GREEDY, prompt_logprobs=NUM_TOP)
    token_ids = to_wire(packed(ids))
    order = Prefill(
        "r", 1, 1, token_ids, len(ids) - num_output, sampling, UNLIMITED, num_scored=num_scored
    )
    return Placed.of(order, 0.0)


def chunks(sequence: Placed, cuts: Sequence[int], slot: int = 0) -> list[Row]:
    """``sequence`` cut before the tokens ``cuts``, as a prefill scheduler would ask for it."""
    pages = tuple(range(slot * 70, slot * 70 + 70))
    starts, ends = [0, *cuts], [*cuts, sequence.num_tokens]
    return [
        Row(
            slot, pages, start, tuple(sequence.token_ids[start:end]),
            sample=end == sequence.num_tokens, scoring=sequence.scoring(start, end),
        )
        for start, end in zip(starts, ends, strict=True)
    ]  # fmt: skip


def computed(engine: Engine, ids: Sequence[int], cuts: Sequence[int]) -> bytes:
    rows = []
    engine.bind(Binding(0, packed(ids), packed(), GREEDY, UNLIMITED))
    for row in chunks(placed(ids), cuts):
        result = engine.launch(ForwardBatch((row,))).result()
        assert bool(result.sampled[0]) == row.sample
        rows.append(result.scored.get(0, b""))
    assert None not in rows
    return b"".join(each for each in rows if each is not None)


def assert_true(rows: bytes, ids: Sequence[int], truth: torch.Tensor) -> None:
    """Every token's log-probability, rank and most probable ids are those of ``truth``."""
    scores = list(read_rows(rows, NUM_TOP))
    assert len(scores) == len(ids) - 1 == len(truth)
    own = truth.gather(1, torch.tensor(ids[1:]).unsqueeze(1))
    ranks = [score.rank for score in scores]
    # Two ids may be as good as equal: a rank is right that is so within the tolerance.
    low, high = (truth > own + ATOL).sum(-1) + 1, (truth > own - ATOL).sum(-1)
    assert all(a <= rank <= b for a, rank, b in zip(low, ranks, high, strict=True))
    found = torch.tensor([score.logprob for score in scores])
    torch.testing.assert_close(found, own.squeeze(1), atol=ATOL, rtol=0)
    values = torch.tensor([[value for _, value in score.top] for score in scores])
    torch.testing.assert_close(values, truth.topk(NUM_TOP).values, atol=ATOL, rtol=0)
    best = torch.tensor([[token_id for token_id, _ in score.top] for score in scores])
    torch.testing.assert_close(truth.gather(1, best), values, atol=ATOL, rtol=0)
    assert all(_agrees(score, token) for score, token in zip(scores, ids[1:], strict=True))


def _agrees(score: TokenScore, token_id: int) -> bool:
    """Among the most probable a token has the very number that it has by itself."""
    own = dict(score.top).get(token_id)
    return own == score.logprob if own is not None else score.rank > NUM_TOP


@pytest.mark.parametrize("length", [2, 63, 64, 65, 66, LENGTH, 1024])
def test_every_position_is_transformers(length: int) -> None:
    ids = text_ids(length)
    assert_true(computed(engine(), ids, []), ids, prompt_truth(ids))


@pytest.mark.parametrize("block", [None, 64])
def test_any_chunks_give_the_same_bits(block: int | None) -> None:
    ids = text_ids(LENGTH)
    engine = load_engine(TINY, kernels=ReferenceKernels(prefill_block=block))
    whole = computed(engine, ids, CUTS[0])
    assert_true(whole, ids, prompt_truth(ids))
    assert all(computed(engine, ids, cuts) == whole for cuts in CUTS[1:])


def test_company_does_not_change_a_bit_and_is_not_scored() -> None:
    ids, others = text_ids(LENGTH), text_ids(130, start=7)
    alone = computed(engine(), ids, [])
    for slot, prompt in ((0, ids), (1, others), (2, others)):
        engine().bind(Binding(slot, packed(prompt), packed(), GREEDY, UNLIMITED))
    (row,), (also,) = chunks(placed(ids), []), chunks(placed(others), [], slot=1)
    (silent,) = chunks(placed(others), [], slot=2)
    silent = replace(silent, scoring=None)
    alone_too = engine().launch(ForwardBatch((silent,))).result()
    result = engine().launch(ForwardBatch((silent, row, also))).result()
    assert set(result.scored) == {1, 2}
    assert result.scored[1] == alone
    assert result.sampled[0] == alone_too.sampled[0]
    rows = result.scored[2]
    assert rows is not None
    assert_true(rows, others, prompt_truth(others))


def test_a_second_attempt_gives_what_the_first_did_not() -> None:
    """Also where output tokens follow the prompt, which are not scored."""
    ids, num_output = text_ids(LENGTH), 9
    whole = list(read_rows(computed(engine(), ids, []), NUM_TOP))
    for num_scored in (0, 63, 64, 200, LENGTH - num_output - 1):
        rows = b""
        engine().bind(Binding(0, packed(ids), packed(), GREEDY, UNLIMITED))
        for row in chunks(placed(ids, num_scored=num_scored, num_output=num_output), [128]):
            rows += engine().launch(ForwardBatch((row,))).result().scored.get(0) or b""
        expected = whole[num_scored : LENGTH - num_output - 1]
        found = list(read_rows(rows, NUM_TOP))
        assert len(found) == len(expected)
        torch.testing.assert_close(
            torch.tensor([score.logprob for score in found]),
            torch.tensor([score.logprob for score in expected]), atol=1e-4, rtol=0,
        )  # fmt: skip


def test_a_chunk_asks_for_what_it_can_give() -> None:
    sequence = placed(range(130))
    assert sequence.scoring(0, 64) == Scoring(0, packed(range(1, 65)), NUM_TOP)
    assert sequence.scoring(64, 130) == Scoring(0, packed(range(65, 130)), NUM_TOP)
    assert sequence.scoring(128, 129) == Scoring(0, packed([129]), NUM_TOP)
    assert sequence.scoring(129, 130) is None, "the last token's successor is sampled"
    assert placed(range(130), num_scored=70).scoring(64, 130) == Scoring(
        6, packed(range(71, 130)), NUM_TOP
    )
    assert placed(range(130), num_scored=129).scoring(64, 130) is None


def test_scored_prompts_have_passes_of_their_own() -> None:
    plain = Row(0, (0,), 0, (1,) * 70)
    scored = Row(1, (1,), 0, (1,) * 130, scoring=Scoring(0, packed([2] * 129), 1))
    decode = Row(2, (2,), 9, None)
    batch = ForwardBatch((scored, plain, decode))
    together = passes(batch, None, None)
    assert [(part.sampled, part.scored) for part in together] == [((2, 1), ()), ((0,), (0,))]
    blocks = passes(batch, None, 64)
    assert [(part.sampled, part.scored) for part in blocks] == [
        ((2, 1), ()), ((), (0,)), ((), (0,)), ((0,), (0,)),
    ]  # fmt: skip
    lens = [len(part.rows[0].scoring.next_ids) for part in blocks[1:] if part.rows[0].scoring]
    assert lens == [64, 64, 1]


def test_scratch_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits are computed for a block of tokens at a time, whatever the prompt's length."""
    ids, sizes = text_ids(LENGTH), []
    whole = computed(engine(), ids, [])
    logits = engine()._logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        sizes.append(len(hidden))
        return logits(hidden)

    monkeypatch.setattr(engine(), "_logits", counted)
    monkeypatch.setattr(engine(), "_scored_block", None)
    monkeypatch.setattr(prompt_scores, "SCRATCH_BYTES", 50 * 1344 * 4)
    rows = computed(engine(), ids, [])
    assert sizes == [50] * 6 + [36, 1], "and the token to sample"
    assert_true(rows, ids, prompt_truth(ids))
    assert len(rows) == len(whole)


def test_logits_that_are_not_finite_are_told() -> None:
    ids = text_ids(100)
    computed(engine(), ids[:64], [])
    engine().bind(Binding(0, packed(ids), packed(), GREEDY, UNLIMITED))
    first, last = chunks(placed(ids), [64])
    assert engine().launch(ForwardBatch((first,))).result().scored[0] is not None
    engine().poison_pages([0])
    result = engine().launch(ForwardBatch((last,))).result()
    assert result.scored[0] is None
    assert result.sampled[0] == (Sampled(None),)
