"""The run of a plan: stack by stack, part by part, each with a deadline and a file.

A part that fails, and a stack that does not start, is reported, and the rest goes on. A part whose
file says that it went well is not measured again, so a call goes on where the one before it ended.
"""

import json
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Literal

import httpx
import redis
import typer

from bench import stack
from bench.commands import CommandFailed
from bench.harness.cannot_measure import CannotMeasure
from bench.node import measurements
from bench.node.plan import Kind, Part, Served, Starts, fits
from bench.node.settings import Settings
from bench.node.token_gaps import NotMeasured
from bench.result_file import ResultFileBad

GRACE_S, LEAST_S = 15.0, 5.0
State = Literal["done", "done before", "failed", "left out", "not yet"]
FAILURES = (
    CommandFailed, stack.StackFailed, NotMeasured, CannotMeasure, ResultFileBad,
    redis.RedisError, httpx.HTTPError, SubprocessError, OSError, TimeoutError, ValueError, KeyError,
)  # fmt: skip
"""What a part may end with. A KeyError: a service is not there."""
WITH_STACK: Mapping[Kind, Callable[[Settings, Part, stack.Stack], list[str]]] = {
    "levels": measurements.levels,
    "crowd": measurements.crowd,
    "handoff": measurements.handoff,
    "interference": measurements.disturb,
}
WITHOUT: Mapping[Kind, Callable[[Settings, Part], list[str]]] = {
    "doctor": measurements.doctor,
    "soak": measurements.soak,
}


@dataclass
class Outcome:
    part: Part
    state: State
    seconds: float = 0.0
    problems: Sequence[str] = ()

    def json(self) -> dict[str, Any]:
        return {
            "part": self.part.name,
            "state": self.state,
            "estimated_s": self.part.seconds,
            "seconds": round(self.seconds, 1),
            "problems": list(self.problems),
        }


class Conductor:
    """``call_s``: no part begins that should not end within it, and none is waited for much longer.
    ``start`` runs a stack; ``started_s`` is what each took to start, ``spent_s`` the call's
    seconds."""

    def __init__(
        self,
        settings: Settings,
        starts: Starts,
        call_s: float,
        *,
        start: Callable[[Settings, Served, float], AbstractContextManager[stack.Stack]]
        | None = None,
        after_part: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._starts, self._clock = settings, starts, clock
        self._began = clock()
        self._ends_at = self._began + call_s
        self._start = start or started
        self._after_part = after_part
        self._num_started = 0
        self._running: tuple[Served, stack.Stack] | None = None
        self._not_startable: dict[Served, str] = {}
        self._open = ExitStack()
        self.started_s: dict[str, float] = {}
        self.spent_s = 0.0

    def is_done(self, part: Part) -> bool:
        """An earlier call has measured it, and it went well."""
        return went_well(self._settings.file(part))

    def run(self, parts: Sequence[Part], chosen: Sequence[Part]) -> list[Outcome]:
        outcomes = []
        with self._open:
            for part in parts:
                outcome = self._outcome(part, chosen)
                outcomes.append(outcome)
                said = f"{part.name}: {outcome.state}, {outcome.seconds:.0f} s"
                typer.echo("\n".join([said, *outcome.problems]), err=True)
            self._stop()
        self.spent_s = self._clock() - self._began
        return outcomes

    def _outcome(self, part: Part, chosen: Sequence[Part]) -> Outcome:
        if self.is_done(part):
            return Outcome(part, "done before")
        if part not in chosen:
            return Outcome(part, "left out")
        running = self._running[0] if self._running else None
        left_s = self._ends_at - self._clock()
        if not fits(part, chosen, left_s, running, self._num_started, self._starts):
            return Outcome(part, "not yet")
        typer.echo(f"{part.name}: about {part.seconds:.0f} s", err=True)
        try:
            problems, seconds = self._measure(part)
        except FAILURES as error:
            problems, seconds = [str(error) or repr(error)], 0.0
        self._after_part()
        return Outcome(part, "failed" if problems else "done", seconds, problems)

    def _measure(self, part: Part) -> tuple[list[str], float]:
        """(problems, seconds without the start of a stack) of one part."""
        measure: Callable[[], list[str]]
        if part.stack is None:
            self._stop()
            part = replace(part, limit_s=self._left_s())
            measure = partial(WITHOUT[part.kind], self._settings, part)
        else:
            running = self._stack(part.stack)
            part = replace(part, limit_s=self._left_s())
            measure = partial(WITH_STACK[part.kind], self._settings, part, running)
        began = self._clock()
        return measure(), self._clock() - began

    def _left_s(self) -> float:
        """Until this call must end; a little in any case, to end with a reason."""
        return max(LEAST_S, self._ends_at + GRACE_S - self._clock())

    def _stack(self, served: Served) -> stack.Stack:
        """The running stack, or a new one if another stack runs or this one has ended. A stack that
        did not start is not tried again."""
        if self._running is not None and self._running[0] == served:
            _, running = self._running
            if running.process.poll() is None:
                return running
        self._stop()
        if problem := self._not_startable.get(served):
            raise stack.StackFailed(f"{served.name} did not start before: {problem[:200]}")
        began = self._clock()
        start_s = min(60.0 + 2 * self._starts.of(self._num_started), self._left_s())
        self._num_started += 1
        try:
            running = self._open.enter_context(self._start(self._settings, served, start_s))
        except stack.StackFailed as error:
            self._not_startable[served] = str(error)
            raise
        self.started_s[served.name] = round(self._clock() - began, 1)
        self._running = served, running
        return running

    def _stop(self) -> None:
        """In order while there is time; then it is killed."""
        if self._running is not None:
            self._running[1].stop(min(stack.STOP_S, self._left_s()))
        self._running = None
        self._open.close()


def started(
    settings: Settings, served: Served, start_s: float
) -> AbstractContextManager[stack.Stack]:
    return stack.started(*settings.up(served), settings=served.settings(), start_s=start_s)


def went_well(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_text())["ok"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def pack(archive: Path, files: Sequence[Path]) -> None:
    """Pack the ``files`` that exist into one archive, whole or not at all."""
    beside = archive.with_name(archive.name + ".part")
    with tarfile.open(beside, "w:gz") as packed:
        for file in files:
            if file.exists():
                packed.add(file, file.name)
    beside.replace(archive)
