"""Run folders: private, owned by a lock, removed when the owner is dead."""

import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from deploy.rundir import RunDir, base_dir, remove_abandoned


def test_a_run_folder_is_private_until_it_is_removed(tmp_path):
    run_dir = RunDir(tmp_path)
    assert stat.S_IMODE(run_dir.path.stat().st_mode) == 0o700
    (run_dir.path / "redis").mkdir()
    run_dir.remove()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_living_owner_stays(tmp_path):
    run_dir = RunDir(tmp_path)
    assert remove_abandoned(tmp_path) == []
    assert run_dir.path.is_dir()
    run_dir.remove()


def test_the_folder_of_a_dead_owner_is_removed(tmp_path):
    code = "import sys, pathlib, os, deploy.rundir as r; r.RunDir(pathlib.Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", f"{code}; os._exit(9)", str(tmp_path)], check=False)
    (litter,) = tmp_path.iterdir()
    (litter / "redis").mkdir()
    assert remove_abandoned(tmp_path) == [litter]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_taken_for_abandoned_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    made, real = [], tempfile.mkdtemp

    def mkdtemp(**where):
        made.append(real(**where))
        if len(made) == 1:
            assert remove_abandoned(tmp_path) == [Path(made[0])]
        return made[-1]

    monkeypatch.setattr("tempfile.mkdtemp", mkdtemp)
    run_dir = RunDir(tmp_path)
    assert [*tmp_path.iterdir()] == [run_dir.path] == [Path(made[1])]
    run_dir.remove()


def test_a_folder_that_only_looks_like_a_run_folder_stays(tmp_path):
    (tmp_path / "baton-up-1234file").touch()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "baton-up-1234link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "baton-up-my_notes").mkdir(mode=0o755)
    (tmp_path / "baton-up-my_longer_notes").mkdir(mode=0o700)
    assert remove_abandoned(tmp_path) == []
    assert len([*tmp_path.iterdir()]) == 5


def test_base_is_where_a_sockets_path_fits(short_dir, monkeypatch):
    assert base_dir({"XDG_RUNTIME_DIR": str(short_dir)}) == short_dir
    long = short_dir / ("x" * 80)
    long.mkdir()
    assert base_dir({"XDG_RUNTIME_DIR": str(long)}) != long
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(ValueError, match=r"^TMPDIR"):
        base_dir({})
