"""Shared memory: found by peers, right bytes after the owner's death, never left behind."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from unittest.mock import Mock

import pytest
import typer

from telemetry.last_words import TRY_AGAIN
from tests.small_disk import fill, small_disk
from transport.copy import shm
from transport.copy.memory import SharedMemory
from transport.wire.errors import PeerGone, SharedMemoryFull
from worker.main import run_service

EXPORTER = """
import sys, transport.copy.shm as shm
segment = shm.Segment(sys.argv[1], 4096)
segment.memory[:5] = b"baton"
print("up", flush=True)
sys.stdin.read()
"""

LATE_WRITER = """
import sys, pathlib, transport.copy.shm as shm
shm.DIRECTORY = pathlib.Path(sys.argv[1])
segment = shm.Segment(sys.argv[2], 65536)
print("reserved", flush=True)
sys.stdin.readline()
segment.memory[:] = b"x" * 65536
print("written", flush=True)
segment.close()
"""


@pytest.fixture
def instance() -> str:
    return "test-" + token_hex(4)


def start_exporter(instance: str) -> subprocess.Popen:
    child = subprocess.Popen(
        [sys.executable, "-c", EXPORTER, instance],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "up\n"
    return child


def test_a_peer_sees_what_the_owner_writes(instance: str) -> None:
    segment = shm.Segment(instance, 8192)
    peer = shm.open_segment(segment.handle, 8192)
    segment.memory[100:105] = b"hello"
    assert peer[100:105] == b"hello"
    segment.close()
    assert not (shm.DIRECTORY / segment.handle).exists()
    assert peer[100:105] == b"hello", "an open mapping outlives the name"


def test_an_owner_learns_that_its_segment_is_gone(instance: str) -> None:
    segment = shm.Segment(instance, 4096)
    path = shm.DIRECTORY / segment.handle
    assert segment.lost() == ""
    path.unlink()
    assert f"{path} is gone: No such file" in segment.lost()
    path.touch()
    assert segment.lost().endswith("is another file now")
    segment.close()


def test_a_killed_owner_leaves_its_bytes_to_peers_and_its_name_to_the_sweep(instance: str) -> None:
    child = start_exporter(instance)
    handle = shm.PREFIX + instance
    peer = shm.open_segment(handle, 4096)
    assert handle not in shm.sweep(), "swept a living owner's segment"
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    assert peer[:5] == b"baton"
    assert handle in shm.sweep()
    with pytest.raises(PeerGone, match=handle):
        shm.open_segment(handle, 4096)


def test_a_successor_frees_what_a_killed_owner_held(instance: str) -> None:
    child = start_exporter(instance)
    child.kill()
    child.wait(10)
    successor = SharedMemory(instance + "-again")
    successor.allocate(4096)
    assert not (shm.DIRECTORY / (shm.PREFIX + instance)).exists()
    assert (shm.DIRECTORY / successor.handle).exists()
    successor.close()


def test_a_size_that_does_not_match_is_refused(instance: str) -> None:
    segment = shm.Segment(instance, 4096)
    with pytest.raises(PeerGone, match="4096 bytes, not 8192"):
        shm.open_segment(segment.handle, 8192)
    segment.close()


def test_too_little_shared_memory_is_an_error_with_the_size(instance: str) -> None:
    with pytest.raises(SharedMemoryFull, match=f"cannot reserve {2**50} bytes"):
        shm.Segment(instance, 2**50)
    assert not (shm.DIRECTORY / (shm.PREFIX + instance)).exists()


@pytest.fixture
def small_shm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """1 MiB of shared memory instead of the machine's."""
    with small_disk(tmp_path / "shm", "1m") as folder:
        monkeypatch.setattr(shm, "DIRECTORY", folder)
        yield folder


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a service configures for its process ends with the test."""
    root = logging.getLogger()
    level = root.level
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    yield
    root.setLevel(level)


@pytest.mark.usefixtures("own_logging")
def test_a_worker_that_starts_when_shared_memory_is_full_says_what_to_do(
    small_shm: Path, instance: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(small_shm / "others", leaving_bytes=8192)
    memory = SharedMemory(instance)
    with pytest.raises(typer.Exit) as ended:
        run_service("prefill", "info", False, lambda: memory.allocate(65536).fill_(1))
    assert ended.value.exit_code == TRY_AGAIN, "there may be room later"
    (line,) = capsys.readouterr().err.splitlines()
    assert f"error: cannot reserve 65536 bytes for baton-{instance} in {small_shm}" in line
    assert f"of whose {2**20} bytes 8192 are free: No space left on device" in line
    assert "BATON_NUM_PAGES, BATON_NUM_STATE_SLOTS" in line
    assert "SHM_SIZE" in line
    assert [path.name for path in small_shm.iterdir()] == ["others"]

    (small_shm / "others").unlink()
    memory.allocate(65536)
    memory.close()


def test_a_segment_keeps_every_byte_when_shared_memory_fills_up_later(
    small_shm: Path, instance: str
) -> None:
    # A process of its own, which SIGBUS may end.
    owner = subprocess.Popen(
        [sys.executable, "-c", LATE_WRITER, small_shm, instance],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert owner.stdout is not None
    assert owner.stdout.readline() == "reserved\n"
    fill(small_shm / "others", leaving_bytes=0)
    peer = shm.open_segment(shm.PREFIX + instance, 65536)
    said, _ = owner.communicate("go\n", timeout=10)
    assert (owner.returncode, said) == (0, "written\n")
    assert peer[:] == b"x" * 65536
    with pytest.raises(SharedMemoryFull):
        shm.Segment(instance + "-next", 65536)


@pytest.mark.parametrize(
    "name", ["", "baton-", "other", "/etc/passwd", "baton-../../etc/passwd", "baton-p/../x",
             "baton-p\0", "baton-p\n", "baton-" + "x" * 65, "baton-..", "../shm/baton-p"]
)  # fmt: skip
def test_a_handle_that_is_no_segments_name_is_not_opened(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "open", Mock(side_effect=AssertionError("opened")))
    with pytest.raises(PeerGone, match="no shared memory segment's name"):
        shm.open_segment(name, 4096)


def test_a_link_is_not_followed(instance: str, tmp_path: Path) -> None:
    link = shm.DIRECTORY / (shm.PREFIX + instance)
    (tmp_path / "elsewhere").write_bytes(bytes(4096))
    link.symlink_to(tmp_path / "elsewhere")
    try:
        with pytest.raises(PeerGone, match="cannot be opened"):
            shm.open_segment(link.name, 4096)
    finally:
        link.unlink()


def test_a_segment_that_cannot_be_had_is_no_reason_to_die(instance: str) -> None:
    no_segment = shm.DIRECTORY / (shm.PREFIX + instance)
    no_segment.mkdir()
    try:
        with pytest.raises(PeerGone, match="cannot be opened"):
            shm.open_segment(no_segment.name, 4096)
    finally:
        no_segment.rmdir()
