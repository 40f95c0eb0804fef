"""How an answer is counted, with a vocabulary that can be counted by hand: two letters a token."""

import pytest

from bench.harness.client.record import Failure, Record, Usage
from bench.harness.figures.counting import count, judged
from tests.bench import stub
from tests.bench.letters import Letters


def answer(num_tokens: int, said: int | None = None, ids: int | None = None) -> Record:
    tokens = list(range(num_tokens))
    return Record(
        due_at_s=0, sent_at_s=0, first_byte_at_s=1, done_at_s=2, streamed=True,
        text=stub.decode(tokens),
        usage=None if said is None else Usage(5, said, 5 + said),
        token_ids=None if ids is None else tuple(range(ids)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("record", "verified", "by", "wrong"),
    [
        (answer(20, said=20, ids=20), 20, "ids", ""),
        (answer(20, said=20), 20, "text", ""),
        (answer(20), 20, "text", ""),
        (answer(18, said=20), 18, "text", ""),  # within what merges may take away
        (answer(17, said=20), 17, "text", "says 20 tokens, but its text has 17"),
        (answer(10, said=20), 10, "text", "says 20 tokens, but its text has 10"),
        (answer(30, said=20), 20, "text", ""),  # broken characters: never more than claimed
        (answer(41, said=20), 20, "text", "says 20 tokens, but its text has 41"),
        (answer(20, said=20, ids=19), 20, "text", "usage says 20 tokens, but 19 token ids came"),
        (answer(19, said=19, ids=19), 19, "ids", "exactly 20 tokens were asked for"),
        (answer(21, said=21, ids=21), 21, "ids", "at most 20 tokens were asked for, 21 came"),
        (answer(10), 10, "text", "20 tokens were asked for, the text has 10"),
        (answer(0, said=20), 0, "text", "says 20 tokens, but its text has 0"),
    ],
)
async def test_what_counts_and_what_is_wrong(
    record: Record, verified: int, by: str, wrong: str
) -> None:
    found = await count(record, Letters(), asked=20, exact=True)
    assert (found.verified, found.by) == (verified, by)
    assert wrong in found.wrong
    assert bool(wrong) == bool(found.wrong)
    assert judged(record, found).failure == (Failure.MISCOUNT if wrong else None)


async def test_ids_of_another_text_prove_nothing() -> None:
    record = Record(
        due_at_s=0, sent_at_s=0, first_byte_at_s=1, done_at_s=2, streamed=True,
        text="abcd", token_ids=(5, 6, 7), usage=Usage(1, 3, 4),
    )  # fmt: skip
    found = await count(record, Letters(), asked=3, exact=False)
    assert (found.verified, found.by, found.ids) == (2, "text", 3)


async def test_a_shorter_answer_is_fine_where_eos_counts() -> None:
    found = await count(answer(7, said=7), Letters(), asked=20, exact=False)
    assert (found.verified, found.wrong) == (7, "")
