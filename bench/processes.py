"""Processes that each hold a loaded model: how they are asked (``Members``), and how they answer
(``serve``).

A command is a line of JSON on stdin with ``do`` and its arguments; the answer is a line of JSON
behind "@", with ``error`` where it failed. Everything else that is printed is for the log.
"""

import json
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

import torch


class MemberFailed(Exception):
    """A member has ended, answered an error or not answered in time; none is of use any more."""


class Members:
    """``count`` processes that run ``command``; their other output goes to files in ``logs``."""

    def __init__(self, count: int, logs: Path, command: Sequence[str]) -> None:
        self.count = count
        logs.mkdir(parents=True, exist_ok=True)
        self._logs = [(logs / f"member-{i}.txt").open("w") for i in range(count)]
        self._processes = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
            for log in self._logs
        ]
        self._answers: list[queue.Queue[str]] = [queue.Queue() for _ in range(count)]
        self._readers = [
            threading.Thread(target=self._read, args=(process.stdout, answers, log), daemon=True)
            for process, answers, log in zip(
                self._processes, self._answers, self._logs, strict=True
            )
        ]
        for reader in self._readers:
            reader.start()

    def ask(
        self, do: str, limit_s: float, arguments: dict[str, Any] | Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Every member's answer, to the same arguments or to its own; raises MemberFailed."""
        each = [arguments] * self.count if isinstance(arguments, dict) else arguments
        for process, own in zip(self._processes, each, strict=True):
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps({"do": do, **own}) + "\n")
                process.stdin.flush()
            except OSError as error:
                raise MemberFailed(f"{do}: a member takes no command: {error}") from error
        deadline = time.monotonic() + limit_s
        found, errors = [], []
        for i, answers in enumerate(self._answers):
            try:
                answer = json.loads(answers.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                answer = {"error": f"no answer in {limit_s} s"}
            found.append(answer)
            if "error" in answer:
                errors.append(f"member {i}: {answer['error']}")
        if errors:
            raise MemberFailed(f"{do}: {'; '.join(errors)}")
        return found

    def __enter__(self) -> "Members":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
        for process, reader, log in zip(self._processes, self._readers, self._logs, strict=True):
            process.wait(30)
            reader.join(5)
            log.close()

    @staticmethod
    def _read(output: IO[str], answers: "queue.Queue[str]", log: IO[str]) -> None:
        for line in output:
            if line.startswith("@"):
                answers.put(line[1:])
            else:
                log.write(line)
        answers.put(json.dumps({"error": "the process has ended"}))


Answer = dict[str, Any]
Commands = Mapping[str, Callable[..., Answer]]


class Member(Protocol):
    """What a process has loaded. ``loaded``: the answer to the command that loaded it."""

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
