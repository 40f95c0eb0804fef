"""The commands that a process of ``python -m bench.spread_step`` serves (bench/spread/processes.py
gives them).

A command is a line of JSON on stdin with ``do`` and its arguments; the answer is a line of JSON
behind "@", with ``error`` where it failed. Everything else that is printed is for the log.
"""

import json
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

Answer = dict[str, Any]
Commands = Mapping[str, Callable[..., Answer]]


class Member(Protocol):
    """What is loaded on one GPU. ``loaded``: the answer to the command that loaded it."""

    @property
    def loaded(self) -> Answer: ...

    @property
    def commands(self) -> Commands:
        """By name, all that it can be told to do."""
        ...


def serve(load: Callable[..., Member]) -> None:
    """Serve commands until stdin ends; the first one loads the member."""
    member: Member | None = None
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            if do == "load":
                command["model_dir"] = Path(command["model_dir"])
                member = load(**command)
                answer = member.loaded
            else:
                assert member is not None, "load comes first"
                with torch.inference_mode():
                    answer = member.commands[do](**command)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print("@" + json.dumps(answer), flush=True)
