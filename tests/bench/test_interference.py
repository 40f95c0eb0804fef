"""Which gaps count while prompts arrive."""

import pytest

from bench.harness.client.record import Arrival, Record
from bench.harness.figures.token_gaps import (
    NotMeasured,
    figures,
    gaps_within,
    pace,
    steady,
    touching,
)  # fmt: skip
from bench.harness.interference import InterferenceSettings, measure
from tests.bench.letters import Letters
from tests.bench.sessions import session
from tests.bench.stub import Behaviour, Stub


def stream(*times: float, due: float = 0.0) -> Record:
    return Record(
        due_at_s=due, sent_at_s=0.0, first_byte_at_s=times[0], done_at_s=times[-1], streamed=True,
        arrivals=tuple(Arrival(at, 1, 1, 1) for at in times),
    )  # fmt: skip


def test_only_gaps_count_while_all_streams_run() -> None:
    streams = [stream(1.0, 2.0, 3.0, 4.0), stream(1.5, 2.5, 3.5)]
    assert steady(streams) == (1.5, 3.5)
    assert gaps_within(streams, (1.5, 3.5)) == [(2.0, 3.0), (1.5, 2.5), (2.5, 3.5)]


def test_streams_that_never_run_together_are_no_measurement() -> None:
    with pytest.raises(NotMeasured, match="all streams ran"):
        steady([stream(1.0, 2.0), stream(3.0, 4.0)])


def test_a_gap_is_beside_a_prompt_if_they_share_time() -> None:
    gaps = [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0), (3.0, 4.0)]
    assert touching(gaps, [(1.5, 2.0), (3.9, 9.0)]) == [(1.0, 2.0), (3.0, 4.0)]


def test_ttft_is_of_prompts_that_came_and_began_while_all_streams_ran() -> None:
    streams = [stream(1.0, 2.0, 3.0, 4.0), stream(1.5, 2.5, 3.5)]
    arrivals = [stream(1.6, due=1.2), stream(2.0, due=1.7), stream(3.9, due=3.4)]
    found = figures(streams, streams, arrivals)
    assert (found["arrivals"]["sent"], found["arrivals"]["within_steady"]) == (3, 1)
    assert found["arrivals"]["ttft_p50_ms"] == pytest.approx(300)
    assert found["arrivals"]["ttft_p99_ms"] == pytest.approx(300)
    assert found["beside_a_prompt"]["gaps"] == 2


async def test_a_long_prompt_is_computed_before_anything_is_measured() -> None:
    settings = InterferenceSettings(2, 8, 40, 3, 50, 1, 0.02)
    async with Stub(Behaviour(0.02, 0.005)) as stub, session(stub.url) as given:
        found = await measure(settings, Letters(), given)
        lengths = [len(served.body["prompt"]) for served in stub.served]
    assert sorted(lengths[:3]) == [8, 8, 50]
    assert lengths[3:5] == [8, 8]
    assert found["arrivals"]["sent"] == 3
    assert lengths.count(50) == 4


def test_pace_is_in_milliseconds() -> None:
    gaps = [(float(n), n + n / 1000) for n in range(1, 102)]
    found = pace(gaps)
    assert (found["gaps"], found["itl_p50_ms"]) == (101, pytest.approx(51))
    assert (found["itl_p99_ms"], found["itl_max_ms"]) == (pytest.approx(100), pytest.approx(101))
    assert pace([]) == {"gaps": 0}
