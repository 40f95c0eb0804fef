"""The form of a stream, as strict clients read it."""

import pytest

from bench.harness.conformance.stream_events import Stream

GOOD = b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'


def test_a_stream_in_good_form_has_no_problem() -> None:
    found = Stream.read(GOOD)
    assert [event.data for event in found.events] == [{"a": 1}, {"b": 2}]
    assert (found.done, found.chat_problems) == (True, [])


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b": ping\n\n" + GOOD, "a comment line"),
        (b"event: x\n" + GOOD, "a line that is no data"),
        (b'data:{"a":1}\n\ndata: [DONE]\n\n', "no space after 'data:'"),
        (b"data: {oops\n\ndata: [DONE]\n\n", "not JSON"),
        (b"data: 3\n\ndata: [DONE]\n\n", "no object"),
        (b'data: {"a":1}\n\n', "without [DONE]"),
        (GOOD + b'data: {"late":1}\n\n', "after [DONE]"),
        (GOOD + GOOD, "after [DONE]"),
        (GOOD[:-1], "not ended by an empty line"),
        (b"data: \xff\n\n" + GOOD, "not UTF-8"),
        (b"", "without [DONE]"),
    ],
)
def test_what_strict_clients_die_of_is_named(body: bytes, named: str) -> None:
    assert any(named in problem for problem in Stream.read(body).chat_problems)


def test_lines_may_end_in_crlf() -> None:
    assert Stream.read(GOOD.replace(b"\n", b"\r\n")).chat_problems == []
