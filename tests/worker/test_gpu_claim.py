"""One GPU, one worker: real locks, and real processes that are killed and stopped."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.gpu_locks.claim import GpuClaim, NoFreeGpu, Place, choose, claim_gpu
from worker.gpu_locks.folder import LockFolder
from worker.gpu_locks.marks import mark_unfit

ROOT = Path(__file__).parents[2]
GPUS = ("GPU-a", "GPU-b", "GPU-c")
DEADLINE_S = 60.0
WORKER = """
import sys
from pathlib import Path
from worker.gpu_locks.claim import claim_gpu
from worker.gpu_locks.folder import LockFolder
folder, instance, share, *gpus = sys.argv[1:]
def waits(reason):
    print("waits:", reason, flush=True)
folder = LockFolder(Path(folder))
claim = claim_gpu(folder, gpus, int(share), instance, timeout_s=60.0, on_waiting=waits)
print(claim.gpu, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> LockFolder:
    return LockFolder(tmp_path / "locks")


@contextmanager
def worker(
    folder: LockFolder, instance: str, *gpus: str, share: int = 1
) -> Iterator[subprocess.Popen]:
    """A process that claims one of ``gpus`` and keeps it until it is ended."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder.path), instance, str(share), *gpus],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen) -> str:
    line = process.stdout.readline().strip()
    assert line, process.stderr.read()
    return line


def claim(
    folder: LockFolder, *gpus: str, share: int = 1, instance: str = "decode-9", timeout_s=1e-3
) -> GpuClaim:
    return claim_gpu(folder, gpus, share, instance, timeout_s=timeout_s)


def give_back(claimed: GpuClaim) -> None:
    for fd in claimed.fds:
        os.close(fd)


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
        give_back(claim(folder, "GPU-a"))
        child.kill()


# ---- what is written


@pytest.mark.parametrize("text", [b"", b"\xff{", b'{"instance":"x"}', b"decode-1, pid 7\n"])
def test_a_lock_file_with_any_text_is_free_unless_it_is_locked(
    folder: LockFolder, text: bytes
) -> None:
    (folder.path / "GPU-a.0").write_bytes(text)
    held = claim(folder, "GPU-a")
    (folder.path / "GPU-a.0").write_bytes(text)
    with pytest.raises(NoFreeGpu, match="GPU-a is held by another worker"):
        claim(folder, "GPU-a")
    give_back(held)


def test_the_text_of_a_dead_worker_is_replaced(folder: LockFolder) -> None:
    with worker(folder, "decode-with-a-long-name-1", "GPU-a") as first:
        assert said(first) == "GPU-a"
    held = claim(folder, "GPU-a", instance="d-2", timeout_s=DEADLINE_S)
    with pytest.raises(NoFreeGpu, match=f"GPU-a is held by d-2, pid {os.getpid()}$"):
        claim(folder, "GPU-a")
    give_back(held)


def test_the_process_that_held_the_gpu_before_has_ended_when_the_next_one_has_it(
    folder: LockFolder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with worker(folder, "decode-1", "GPU-a") as first:
        assert said(first) == "GPU-a"
        text = (folder.path / "GPU-a.0").read_bytes()
        os.rename(folder.path / "GPU-a.0", folder.path / "moved")  # so that its lock is no matter
        (folder.path / "GPU-a.0").write_bytes(text)
        monkeypatch.setattr("worker.gpu_locks.claim.END_S", 0.01)
        give_back(claim(folder, "GPU-a"))
        assert f"decode-1, pid {first.pid}, which held GPU-a before, has not" in caplog.text

        (folder.path / "GPU-a.0").write_bytes(text)
        monkeypatch.setattr("worker.gpu_locks.claim.END_S", DEADLINE_S)
        caplog.clear()
        threading.Timer(0.05, first.kill).start()
        give_back(claim(folder, "GPU-a"))
        assert "has not ended" not in caplog.text
        assert first.wait(DEADLINE_S) == -signal.SIGKILL


def test_a_lock_file_that_was_removed_is_made_anew(folder: LockFolder) -> None:
    give_back(claim(folder, "GPU-a"))
    (folder.path / "GPU-a.0").unlink()
    held = claim(folder, "GPU-a")
    assert (folder.path / "GPU-a.0").exists()
    give_back(held)


# ---- GPUs that are shared


def test_all_workers_of_a_node_must_agree_on_the_share(folder: LockFolder) -> None:
    held = [claim(folder, "GPU-a", share=2), claim(folder, "GPU-a", share=2)]
    with pytest.raises(ValueError, match=r"gpu_share: 1 here, but 2 of the other workers"):
        claim(folder, "GPU-b", share=1)
    with pytest.raises(NoFreeGpu, match=r"GPU-a is held by decode-9, pid \d+ and decode-9, pid "):
        claim(folder, "GPU-a", share=2)
    give_back(held.pop())
    with pytest.raises(ValueError, match="gpu_share: 3 here, but 2 "):
        claim(folder, "GPU-a", share=3)
    give_back(held.pop())
    give_back(claim(folder, "GPU-a", share=1))


# ---- GPUs that are unfit


def test_a_marked_gpu_is_passed_over_and_its_holder_keeps_it(
    folder: LockFolder, caplog: pytest.LogCaptureFixture
) -> None:
    held = claim(folder, "GPU-a")
    mark_unfit(folder.path, "GPU-a", "Xid 48", for_s=3600.0)
    give_back(held)
    other = claim(folder, "GPU-a", "GPU-b")
    assert other.gpu == "GPU-b"
    assert "took GPU-b, and not others: GPU-a is unfit for another 60 min" in caplog.text
    with pytest.raises(NoFreeGpu) as none:
        claim(folder, "GPU-a")
    advice = f"reset with nvidia-smi -r -i GPU-a, then clear with rm {folder.path}/GPU-a.unfit"
    assert str(none.value).endswith(f"GPU-a is unfit for another 60 min (Xid 48); {advice}")
    give_back(other)


def test_a_gpu_that_is_marked_as_its_holder_ends_is_not_taken_by_one_that_waits(
    folder: LockFolder,
) -> None:
    with worker(folder, "decode-1", "GPU-a") as first:
        assert said(first) == "GPU-a"
        with worker(folder, "decode-2", "GPU-a") as waiting:
            assert said(waiting).startswith("waits: GPU-a is held by decode-1, ")
            mark_unfit(folder.path, "GPU-a", "Xid 48", for_s=3600.0)
            first.kill()
            assert said(waiting).startswith("waits: GPU-a is unfit for another 60 min (Xid 48)")
            (folder.path / "GPU-a.unfit").unlink()
            assert said(waiting) == "GPU-a"


def test_a_worker_that_waits_gets_a_gpu_whose_mark_ends(folder: LockFolder) -> None:
    mark_unfit(folder.path, "GPU-a", "Xid 48", for_s=0.2)
    give_back(claim(folder, "GPU-a", timeout_s=DEADLINE_S))


# ---- the folder


@pytest.mark.parametrize("kind", ["no parent", "a file", "not writable"])
def test_a_folder_that_cannot_be_used_is_refused_by_the_settings_name(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "locks"
    if kind == "no parent":
        path = path / "below"
    elif kind == "a file":
        path.touch()
    else:
        path.mkdir()
        monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(ValueError, match=f"^BATON_GPU_LOCK_DIR: cannot use the folder {path}: "):
        LockFolder(path)


def test_the_folder_and_its_files_are_for_every_user(folder: LockFolder) -> None:
    held = claim(folder, "GPU-a")
    assert folder.path.stat().st_mode & 0o7777 == 0o1777
    assert {p.stat().st_mode & 0o777 for p in folder.path.iterdir()} == {0o666}
    give_back(held)


def test_a_link_in_the_folder_is_not_followed(folder: LockFolder, tmp_path: Path) -> None:
    (folder.path / "GPU-a.0").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"^BATON_GPU_LOCK_DIR: "):
        claim(folder, "GPU-a")
    assert not (tmp_path / "elsewhere").exists()
