"""What a stack does when a control group gives one of its processes almost no more memory.

    python -m tests.soak.tight_memory --more 2 --out FILE

needs root and a control group of the memory controller, of version 1 or 2. A prefill worker, a
decode worker, the coordinator, Redis, and in a stack of its own a colocated worker are each put
into a group while streams run, and more streams follow: the kernel kills the process where it needs
more than ``--more`` MiB beside what it has. Every token is compared, and each request must have one
end. A kill of the coordinator may break open responses. Exit code 1 after a violation.
"""

import asyncio
import os
import random
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.environment import describe
from bench.result_file import write
from tests.e2e.records import outcomes, settled
from tests.e2e.served import TINY
from tests.e2e.stack import Stack
from tests.e2e.streams import Seen, Stream, all_ended, some_reach

NUM_STREAMS = 24
STACKS = (
    (("--prefill", "2", "--decode", "2"), 4, ("prefill-1", "decode-1", "coordinator", "redis")),
    (("--role", "colocated", "--workers", "2"), 2, ("colocated-1",)),
)
"""Arguments of ``baton up``, the number of its workers, and the processes to confine."""
WHOLE_S = 60.0


class Group:
    """A control group with a limit of its memory."""

    def __init__(self, more_mib: int) -> None:
        """Raises OSError where there is none to be had."""
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        root, limit, self._kills = (
            (v1, "memory.limit_in_bytes", "memory.oom_control")
            if v1.is_dir()
            else (v2, "memory.max", "memory.events")
        )
        self._path = root / f"baton-{os.getpid()}"
        self._path.mkdir()
        (self._path / limit).write_text(str(more_mib << 20))

    def add(self, pid: int) -> None:
        """Count what the process gets from now on: what it has stays with its former group."""
        (self._path / "cgroup.procs").write_text(str(pid))

    def kills(self) -> int:
        lines = (self._path / self._kills).read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))

    def remove(self) -> None:
        self._path.rmdir()


def streams(url: str) -> list[Stream]:
    draw = random.Random(5)
    prompts = [[draw.randrange(260) for _ in range(draw.randint(5, 330))] for _ in range(12)]
    return [
        Stream(url, prompts[i % 12], max_tokens=150, seed=i, temperature=float(i % 2))
        for i in range(NUM_STREAMS)
    ]


def pid_of(stack: Stack, name: str) -> int:
    """The process of a service."""
    if name != "redis":
        return stack.pids()[name]
    with stack.redis() as server:
        return int(server.info("server")["process_id"])


async def confine(
    stack: Stack, name: str, more_mib: int, alone: list[Seen], num_workers: int
) -> dict[str, Any]:
    """Confine the process while streams run. Returns what was seen."""
    pid = pid_of(stack, name)
    group = Group(more_mib)
    running = streams(stack.url)
    await some_reach(running, 4, num_tokens=5)
    group.add(pid)
    running += streams(stack.url)
    await all_ended(running)
    broken = sum(stream.outcome == "" for stream in running)
    pairs = zip(running, alone * 2, strict=True)
    wrong = sum(
        stream.seen != seen
        if stream.outcome
        else stream.token_ids != seen[0][: len(stream.token_ids)]
        for stream, seen in pairs
    )
    kills = group.kills()
    with suppress(ProcessLookupError):  # the next process is not in the group
        os.kill(pid, signal.SIGKILL)
    await stack.idle(num_workers, WHOLE_S)
    if name != "redis":  # its records are gone with it
        with stack.redis() as server:
            await settled(server, outcomes([s for s in running if s.outcome]), WHOLE_S)
    group.remove()
    failed = sum(stream.error is not None for stream in running)
    return {
        "process": name, "requests": len(running), "killed_by_kernel": kills,
        "wrong": wrong, "failed": failed, "broken": broken,
    }  # fmt: skip


async def run(
    stack: Stack, num_workers: int, names: tuple[str, ...], more_mib: int
) -> list[dict[str, Any]]:
    alone = [stream.seen for stream in await all_ended(streams(stack.url))]
    found = []
    for name in names:
        found.append(await confine(stack, name, more_mib, alone, num_workers))
        print(found[-1], flush=True)
    return found


def main(
    more: Annotated[int, typer.Option(min=1, help="MiB beside what a process has.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Confine a process of each kind, and compare every token."""
    found, codes = list[dict[str, Any]](), list[int | None]()
    for arguments, num_workers, names in STACKS:
        split = {"verify_handoff": True} if "--prefill" in arguments else {}
        stack = Stack(
            TINY, *arguments, heartbeat=0.25, dead_after=3.0, page_size=16, num_pages=1024,
            max_batch_tokens=128, poison=True, log_level="warning", **split,
        )  # fmt: skip
        try:
            found += asyncio.run(run(stack.start(), num_workers, names, more))
            codes.append(stack.stop())
        finally:
            stack.close()
    if out is not None:
        write(
            out, {"environment": describe(sys.argv[1:], "tests.soak.tight_memory"), "runs": found}
        )
    lost = any(run["broken"] for run in found if run["process"] != "coordinator")
    raise SystemExit(int(bool(any(codes) or lost or any(r["wrong"] or r["failed"] for r in found))))


if __name__ == "__main__":
    typer.run(main)
