"""What start-up looks like, on a terminal and elsewhere."""

import io

from rich.console import Console

from deploy.console import Moving, Plain


def test_plain_status_repeats_only_when_it_says_something_new(capsys):
    plain = Plain()
    for percent in (1, 2, 30, 31, 60, 100):
        plain.status("decode-1", f"loading weights {percent}%", percent / 100)
    plain.status("decode-1", "ready")
    plain.status("decode-1", "ready")
    plain.log("decode-1", "hello")
    plain.ready(["try it", "ready: here"])
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "decode-1: loading weights 1%",
        "decode-1: loading weights 30%",
        "decode-1: loading weights 60%",
        "decode-1: loading weights 100%",
        "decode-1: ready",
        "decode-1 | hello",
    ]
    assert told.out.splitlines()[-1] == "ready: here"


def test_terminal_gets_its_cursor_back(capsys):
    screen = io.StringIO()
    moving = Moving(Console(file=screen, force_terminal=True, width=80))
    moving.status("decode-1", "loading weights 40%", 0.4)
    moving.log("decode-1", "[not markup]")
    moving.status("decode-1", "ready")
    moving.ready(["ready: here"])
    moving.status("decode-1", "killed by SIGKILL")
    shown = screen.getvalue()
    assert "loading weights 40%" in shown
    assert "decode-1 | [not markup]" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert "decode-1: killed by SIGKILL" in shown
    assert capsys.readouterr().out == "ready: here\n"


def test_lost_terminal_stops_nothing(monkeypatch):
    closed = open("/dev/full", "w", buffering=1)  # noqa: SIM115
    monkeypatch.setattr("sys.stderr", closed)
    Plain().say("into the void")
