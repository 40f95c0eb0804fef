"""What a worker tells of a batch of scored prompts."""

import pytest

from engine.batch import Row, Scoring, StepResult
from engine.sequence import Beginning, Scheduled, Sequence
from transport.wire.messages import Failed, FromWorker
from transport.wire.offers import PrefixName
from transport.wire.prefix import PrefixKeys
from transport.wire.prompt_logprobs import PromptLogprobs
from transport.wire.sampling import SamplingParams, StopRule
from transport.wire.token_ids import packed
from worker import reports


def scheduled(num_prompts: int) -> Scheduled:
    """Chunks of tokens 64 to 104, whose successors are scored from token 70 on."""
    sampling = SamplingParams(prompt_logprobs=1)
    sequences = [
        Sequence(f"r{i}", 1, i, packed(range(200)), 200, sampling, StopRule(4))
        for i in range(num_prompts)
    ]
    scoring = Scoring(5, packed(range(70, 105)), 1)
    rows = [Row(i, (0,), 64, (0,) * 40, sample=False, scoring=scoring) for i in range(num_prompts)]
    return Scheduled(tuple(rows), tuple(sequences))


def test_many_rows_are_sent_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "ROWS_A_MESSAGE", 15)
    sent: list[FromWorker] = []
    rows = bytes(range(35)) * 16
    broken = reports.Reports(sent.append).prompt_logprobs(
        scheduled(1), StepResult(((),), {0: rows})
    )
    assert broken == []
    assert sent == [
        PromptLogprobs("r0", 1, 70, rows[: 15 * 16]),
        PromptLogprobs("r0", 1, 85, rows[15 * 16 : 30 * 16]),
        PromptLogprobs("r0", 1, 100, rows[30 * 16 :]),
    ]


def test_nothing_is_sent_of_prompts_that_ended_or_are_not_finite() -> None:
    sent: list[FromWorker] = []
    batch = scheduled(3)
    batch.sequences[0].ended = True
    rows = {0: bytes(16 * 35), 1: None, 2: bytes(16 * 35)}
    broken = reports.Reports(sent.append).prompt_logprobs(batch, StepResult(((),) * 3, rows))
    assert broken == [batch.sequences[1]]
    assert [each.request_id for each in sent if isinstance(each, PromptLogprobs)] == ["r2"]


@pytest.mark.parametrize("reused", ["peer", "gpu"])
def test_a_failure_names_the_prefix_of_a_peer_that_nan_may_come_from(reused: str) -> None:
    sent: list[FromWorker] = []
    ids = packed(range(40))
    sequence = Sequence("r", 1, 1, ids, 40, SamplingParams(), StopRule(4))
    sequence.keys, sequence.beginning = PrefixKeys("m", "", ids, 16), Beginning(37, reused)
    for error in ("", "the grammar's"):
        reports.Reports(sent.append).sampling_failed(sequence, error)
    begin, pages = (PrefixKeys("m", "", ids[:n], 16).prefix(n) for n in (37, 32))
    named = PrefixName(begin, pages, 37) if reused == "peer" else None
    assert [m.pulled for m in sent if isinstance(m, Failed)] == [named, None]
