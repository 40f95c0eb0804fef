"""Marks on GPUs that no worker gets: how long they last, and what ends them."""

import math
import time
from pathlib import Path

import pytest

from worker.gpu_locks import marks
from worker.gpu_locks.marks import how_to_clear, mark_unfit, unfit_gpus

XID = "Xid 48: an uncorrected memory error"


def test_a_mark_lasts_for_its_time_since_the_boot_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_unfit(tmp_path, "GPU-a", XID, for_s=600.0)
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    for later_s, left in ((1.0, True), (599.0, True), (601.0, False)):
        monkeypatch.setattr(time, "clock_gettime", lambda _, at=now + later_s: at)
        assert (list(unfit_gpus(tmp_path)) == ["GPU-a"]) is left


def test_a_mark_is_made_anew_and_says_why_and_what_to_do(tmp_path: Path) -> None:
    mark_unfit(tmp_path, "GPU-a", "Xid 46", for_s=1.0)
    mark_unfit(tmp_path, "GPU-a", XID, for_s=3600.0)
    mark_unfit(tmp_path, "GPU-b", XID, for_s=60.0)
    found = unfit_gpus(tmp_path)
    assert [str(mark) for mark in found.values()] == [
        f"GPU-a is unfit for another 60 min ({XID})", f"GPU-b is unfit for another 1 min ({XID})",
    ]  # fmt: skip
    files = f"{tmp_path}/GPU-a.unfit {tmp_path}/GPU-b.unfit"
    assert how_to_clear(found.values()) == (
        f"reset with nvidia-smi -r -i GPU-a,GPU-b, then clear with rm {files}"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["GPU-a.unfit", "GPU-b.unfit"]


def test_a_reboot_ends_every_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark_unfit(tmp_path, "GPU-a", XID, for_s=3600.0)
    monkeypatch.setattr(marks, "_boot_id", lambda: "another boot")
    assert unfit_gpus(tmp_path) == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [(b"", "marked by hand"), (b"fan\nis loud\n", "fan is loud"), (b"\xff", "\ufffd")],
)
def test_a_mark_made_by_hand_has_no_end(tmp_path: Path, text: bytes, why: str) -> None:
    (tmp_path / "GPU-a.unfit").write_bytes(text)
    (mark,) = unfit_gpus(tmp_path).values()
    assert (mark.why, mark.left_s) == (why, math.inf)
    assert str(mark) == f"GPU-a is unfit without an end ({why})"


def test_a_mark_that_cannot_be_read_counts(tmp_path: Path) -> None:
    (tmp_path / "GPU-a.unfit").mkdir()
    (mark,) = unfit_gpus(tmp_path).values()
    assert mark.why == "its mark cannot be read: Is a directory"
