"""Stop strings: found wherever the text is cut, and nothing held back for good."""

from hypothesis import given
from hypothesis import strategies as st

from coordinator.text.detokenizer import StopStrings

# Few letters, so that stop strings occur, overlap and nearly occur.
TEXT = st.text(alphabet="abc\n🙂", max_size=60)
STOPS = st.lists(st.text(alphabet="abc\n🙂", min_size=1, max_size=5), max_size=6)


def expected(text: str, stops: list[str], *, include_stop: bool) -> tuple[str, str | None]:
    """The stop string that ends first, the longest of those, by looking at every end."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end if include_stop else end - len(stop)], stop
    return text, None


def fed(pieces: list[str], stops: list[str], *, include_stop: bool) -> tuple[str, str | None]:
    matcher = StopStrings(stops).matcher()
    out = ""
    for piece in pieces:
        matched = matcher.push(piece, include_stop=include_stop)
        out += matched.text
        if matched.stop is not None:
            return out + matcher.flush(), matched.stop
    return out + matcher.flush(), None


@given(pieces=st.lists(TEXT, max_size=8), stops=STOPS, include_stop=st.booleans())
def test_any_cut_of_the_text_gives_the_same(
    pieces: list[str], stops: list[str], include_stop: bool
) -> None:
    text = "".join(pieces)
    assert fed(pieces, stops, include_stop=include_stop) == expected(
        text, stops, include_stop=include_stop
    )


@given(text=TEXT, stops=STOPS)
def test_only_the_start_of_a_stop_string_is_held(text: str, stops: list[str]) -> None:
    matcher = StopStrings(stops).matcher()
    out = ""
    for num_pushed, char in enumerate(text, start=1):
        matched = matcher.push(char)
        out += matched.text
        if matched.stop is not None:
            return
        held = text[len(out) : num_pushed]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_nothing_is_held() -> None:
    assert StopStrings([]).matcher().push("abc") == ("abc", None)
