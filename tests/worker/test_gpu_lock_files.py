"""What is in the folder of locks: texts, the share, marks, and who may use it."""

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.worker.gpu_claims import DEADLINE_S, claim, give_back, said, worker
from worker.gpu_locks.claim import NoFreeGpu
from worker.gpu_locks.folder import LockFolder
from worker.gpu_locks.marks import mark_unfit


@pytest.fixture
def folder(tmp_path: Path) -> LockFolder:
    return LockFolder(tmp_path / "locks")


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
