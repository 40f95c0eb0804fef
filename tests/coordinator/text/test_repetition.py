"""The detector of repetitions, against its definition."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.text.repetition import RepetitionDetection, RepetitionDetector


def repeats(tokens: list[int], wanted: RepetitionDetection) -> bool:
    """Whether ``tokens`` end with a pattern as often as ``wanted``."""
    for size in range(max(1, wanted.min_pattern_size), wanted.max_pattern_size + 1):
        length = size * wanted.min_count
        pattern = tokens[-size:]
        if len(tokens) >= length and tokens[-length:] == pattern * wanted.min_count:
            return True
    return False


@given(
    st.lists(st.integers(0, 2), max_size=60),
    st.integers(0, 5), st.integers(0, 5), st.integers(2, 4),
)  # fmt: skip
def test_it_finds_what_repeats(tokens: list[int], low: int, more: int, min_count: int) -> None:
    wanted = RepetitionDetection(
        min_pattern_size=low, max_pattern_size=max(1, low + more), min_count=min_count
    )
    detector = RepetitionDetector(wanted)
    for end, token_id in enumerate(tokens, start=1):
        assert detector.push(token_id) == repeats(tokens[:end], wanted)
