"""How a process with a loaded model answers."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.processes import Commands, serve


class Loaded:
    def __init__(self, model_dir: Path) -> None:
        self._name = model_dir.name
        self.loaded = {"handle": "00"}

    @property
    def commands(self) -> Commands:
        return {"name": self.name}

    def name(self, times: int) -> dict[str, Any]:
        print("for the log")
        return {"name": self._name * times}


def test_commands_are_answered_and_a_failure_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        {"do": "name", "times": 1},
        {"do": "load", "model_dir": "/models/tiny"},
        {"do": "name", "times": 2},
        {"do": "handles"},
        {"do": "name", "times": 1},
    ]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(a) + "\n" for a in asked)))
    serve(Loaded)
    printed = capsys.readouterr().out.splitlines()
    answers = [json.loads(line[1:]) for line in printed if line.startswith("@")]
    assert answers == [
        {"error": "AssertionError: load comes first"},
        {"handle": "00"},
        {"name": "tinytiny"},
        {"error": "KeyError: 'handles'"},
        {"name": "tiny"},
    ]
    assert printed.count("for the log") == 2
