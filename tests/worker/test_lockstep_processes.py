"""Processes in lockstep through real shared memory, of which one is killed or stopped."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from secrets import token_hex

import msgspec
import pytest

from transport.copy import shm
from transport.wire.spread import SpreadExport, SpreadGroup, SpreadMember

pytestmark = pytest.mark.timeout(300)
DEADLINE_S = 90.0
ROWS = (3, 40, 0)


class Member:
    """A process, and all that it has said."""

    def __init__(self, rows: int) -> None:
        self.name = f"d-{token_hex(4)}"
        self.lines: list[dict] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.worker.lockstep_member", self.name, str(rows)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        first = json.loads(self._process.stdout.readline())
        self.export = msgspec.convert(first["export"], SpreadExport)
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self, group: SpreadGroup) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(group).decode() + "\n")
        self._process.stdin.flush()
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                self.lines.append(json.loads(line))

    def computed(self) -> dict[int, int]:
        """The bucket of each round that was not taken back."""
        said = [line for line in self.lines if "round" in line and not line["aborted"]]
        return {line["round"]: line["bucket"] for line in said}

    def num_local(self) -> int:
        return sum("local" in line for line in self.lines)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)
        if self._reader.is_alive():
            self._reader.join(DEADLINE_S)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture(scope="module")
def trio() -> Iterator[list[Member]]:
    """Of which the last test kills one."""
    with ExitStack() as cleanup:
        members = []
        for rows in ROWS:
            members.append(Member(rows))
            cleanup.callback(members[-1].close)
        group = SpreadGroup(9, tuple(SpreadMember(m.name, m.export) for m in members))
        for member in members:
            member.begin(group)
        yield members
    shm.sweep()


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        threading.Event().wait(0.01)


def wait_for_rounds(members: list[Member], number: int) -> None:
    known = [len(m.computed()) for m in members]
    wait_for(
        lambda: all(
            len(m.computed()) >= before + number for m, before in zip(members, known, strict=True)
        ),
        f"{number} more rounds by all; were {known}",
    )


def assert_same_graphs(members: list[Member]) -> None:
    buckets: dict[int, int] = {}
    for member in members:
        for number, bucket in member.computed().items():
            assert buckets.setdefault(number, bucket) == bucket == 64


@contextmanager
def more_local_steps(members: list[Member], number: int) -> Iterator[None]:
    known = [m.num_local() for m in members]
    yield
    wait_for(
        lambda: all(
            m.num_local() >= before + number for m, before in zip(members, known, strict=True)
        ),
        f"{number} more local steps by all",
    )


def test_a_process_that_is_stopped_takes_part_again_when_it_goes_on(trio: list[Member]) -> None:
    wait_for_rounds(trio, 100)
    rest = trio[:2]
    with more_local_steps(rest, 50):
        trio[2].signal(signal.SIGSTOP)
    trio[2].signal(signal.SIGCONT)
    wait_for_rounds(trio, 50)
    assert_same_graphs(trio)


def test_processes_take_steps_together_and_go_on_alone_when_one_is_killed(
    trio: list[Member],
) -> None:
    wait_for_rounds(trio, 200)
    rest = [trio[0], trio[2]]
    with more_local_steps(rest, 50):
        trio[1].signal(signal.SIGKILL)
    assert_same_graphs(trio)
