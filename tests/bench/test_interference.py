"""Which gaps count while prompts arrive."""

import pytest

from bench.client.record import Arrival, Record
from bench.interference import (
    Load,
    NotMeasured,
    gaps_within,
    pace,
    setup_arguments,
    steady,
    touching,
)


def stream(*times: float) -> Record:
    return Record(
        due_at_s=0.0, sent_at_s=0.0, first_byte_at_s=times[0], done_at_s=times[-1], streamed=True,
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


def test_pace_is_in_milliseconds() -> None:
    gaps = [(float(n), n + n / 1000) for n in range(1, 102)]
    found = pace(gaps)
    assert (found["gaps"], found["itl_p50_ms"]) == (101, pytest.approx(51))
    assert (found["itl_p99_ms"], found["itl_max_ms"]) == (pytest.approx(100), pytest.approx(101))
    assert pace([]) == {"gaps": 0}


def test_set_ups_are_arguments_of_baton_up() -> None:
    assert setup_arguments("split:1+3") == ["--role", "split", "--prefill", "1", "--decode", "3"]
    assert setup_arguments("both:4") == ["--role", "both", "--workers", "4"]
    with pytest.raises(ValueError, match=r"^--setup: '4' is neither"):
        setup_arguments("4")


def test_a_load_names_what_is_wrong_with_it() -> None:
    with pytest.raises(ValueError, match=r"^every_s: 0 is not positive"):
        Load(1, 1, 1, 1, 1, 1, 0, 1)
