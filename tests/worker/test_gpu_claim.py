"""One GPU, one worker: real locks, and real processes that are killed and stopped."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker.gpu_claims import DEADLINE_S, claim, give_back, said, worker
from worker.gpu_locks.claim import GpuClaim, NoFreeGpu, Place, choose
from worker.gpu_locks.folder import LockFolder

GPUS = ("GPU-a", "GPU-b", "GPU-c")


@pytest.fixture
def folder(tmp_path: Path) -> LockFolder:
    return LockFolder(tmp_path / "locks")


# ---- which one


@given(
    places=st.lists(st.tuples(st.sampled_from(GPUS), st.booleans()), max_size=12),
    unfit=st.sets(st.sampled_from(GPUS)),
)
def test_the_choice_is_free_fit_and_on_the_gpu_with_the_fewest_holders(
    places: list[tuple[str, bool]], unfit: set[str]
) -> None:
    places = [Place(gpu, f"{gpu}.{i}", i, free) for i, (gpu, free) in enumerate(places)]
    chosen = choose(places, unfit)
    allowed = [place for place in places if place.mine and place.gpu not in unfit]
    if chosen is None:
        assert not allowed
        return
    assert chosen in allowed

    def holders(gpu: str) -> int:
        return sum(place.gpu == gpu and not place.mine for place in places)

    fewest = min(holders(place.gpu) for place in allowed)
    assert chosen is next(place for place in allowed if holders(place.gpu) == fewest)


wishes = st.permutations(GPUS).flatmap(lambda p: st.integers(1, 3).map(lambda n: p[:n]))


@settings(max_examples=40, deadline=None)
@given(share=st.integers(1, 3), events=st.lists(wishes | st.integers(0, 8), max_size=20))
def test_no_gpu_has_more_holders_than_places(
    tmp_path_factory: pytest.TempPathFactory, share: int, events: list
) -> None:
    folder = LockFolder(tmp_path_factory.mktemp("locks"))
    held: list[GpuClaim] = []
    for event in events:
        if isinstance(event, int):
            if event < len(held):
                give_back(held.pop(event))
            continue
        num_held = {gpu: sum(each.gpu == gpu for each in held) for gpu in event}
        free = [gpu for gpu in event if num_held[gpu] < share]
        if free:
            held.append(claim(folder, *event, share=share))
            assert held[-1].gpu == min(free, key=lambda gpu: num_held[gpu])
        else:
            with pytest.raises(NoFreeGpu):
                claim(folder, *event, share=share)
    for each in held:
        give_back(each)


def test_workers_that_start_at_once_get_a_gpu_each(folder: LockFolder) -> None:
    gpus = [f"GPU-{i}" for i in range(4)]
    with (
        worker(folder, "w-1", *gpus) as a, worker(folder, "w-2", *gpus) as b,
        worker(folder, "w-3", *gpus) as c, worker(folder, "w-4", *gpus) as d,
    ):  # fmt: skip
        assert sorted(map(said, (a, b, c, d))) == gpus


# ---- how long


def test_a_killed_workers_gpu_goes_to_one_that_waits_for_it(folder: LockFolder) -> None:
    with worker(folder, "decode-1", "GPU-a") as first:
        assert said(first) == "GPU-a"
        with worker(folder, "decode-2", "GPU-a") as second:
            assert said(second) == f"waits: GPU-a is held by decode-1, pid {first.pid}"
            first.send_signal(signal.SIGKILL)
            assert said(second) == "GPU-a"
            with pytest.raises(NoFreeGpu, match=f"GPU-a is held by decode-2, pid {second.pid}"):
                claim(folder, "GPU-a")


def test_the_first_gpu_that_gets_free_is_taken(folder: LockFolder) -> None:
    with worker(folder, "decode-1", "GPU-a") as a, worker(folder, "decode-2", "GPU-b") as b:
        assert {said(a), said(b)} == {"GPU-a", "GPU-b"}
        with worker(folder, "decode-3", "GPU-a", "GPU-b") as third:
            assert said(third).startswith("waits: GPU-a is held by decode-1, pid ")
            b.kill()
            assert said(third) == "GPU-b"


def test_a_stopped_worker_keeps_its_gpu(folder: LockFolder) -> None:
    with worker(folder, "decode-1", "GPU-a") as stopped:
        assert said(stopped) == "GPU-a"
        stopped.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, stopped.pid, os.WSTOPPED)
        with pytest.raises(NoFreeGpu, match="none is free after 0 s: GPU-a is held by decode-1"):
            claim(folder, "GPU-a")
        stopped.send_signal(signal.SIGKILL)
        give_back(claim(folder, "GPU-a", timeout_s=DEADLINE_S))


def test_a_worker_that_is_killed_while_it_waits_leaves_the_gpu_to_others(
    folder: LockFolder,
) -> None:
    held = claim(folder, "GPU-a")
    with worker(folder, "decode-2", "GPU-a") as waiting:
        assert said(waiting).startswith("waits: ")
    give_back(held)
    give_back(claim(folder, "GPU-a", timeout_s=DEADLINE_S))


def test_a_program_started_by_a_worker_does_not_inherit_the_lock(folder: LockFolder) -> None:
    held = claim(folder, "GPU-a")
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, close_fds=False) as child:
        give_back(held)
        # The child waits for input. Popen may return before the kernel has closed its files.
        give_back(claim(folder, "GPU-a", timeout_s=DEADLINE_S))
        child.kill()
