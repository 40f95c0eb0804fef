"""Which folder a path means, and what is said about one that cannot be served."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deploy import check_model
from transport.checkpoint_folder import (
    CONFIG,
    INDEX,
    SINGLE,
    checkpoint_folder,
    model_name,
    require_readable,
    weight_files,
)

FILES = (CONFIG, "tokenizer.json", SINGLE)
COMMIT = "0123abcd"


def plain(folder: Path, files: tuple[str, ...] = FILES) -> Path:
    folder.mkdir(parents=True)
    for name in files:
        (folder / name).write_text("{}")
    return folder


def cached(folder: Path, commit: str = COMMIT, main: str | None = COMMIT) -> Path:
    """A model's folder as huggingface_hub lays it out; returns it."""
    model = folder / "models--Some--Model-35B"
    (model / "blobs").mkdir(parents=True, exist_ok=True)
    (model / "snapshots" / commit).mkdir(parents=True)
    for name in FILES:
        (model / "blobs" / f"{commit}-{name}").write_text("{}")
        (model / "snapshots" / commit / name).symlink_to(f"../../blobs/{commit}-{name}")
    if main is not None:
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(f"{main}\n")
    return model


def check(folder: Path, load_format: str = "auto"):
    """As the service check-model of docker-compose.yml does. Without a handler, logging writes the
    messages of errors to stderr."""
    arguments = ["--model", str(folder), "--load-format", load_format]
    app = check_model.typer.Typer()
    app.command()(check_model.main)
    root = logging.getLogger()
    handlers, root.handlers[:] = root.handlers[:], []
    try:
        return CliRunner().invoke(app, arguments)
    finally:
        root.handlers[:] = handlers


def test_a_plain_folder_is_the_checkpoint(tmp_path: Path) -> None:
    folder = plain(tmp_path / "model")
    assert checkpoint_folder(folder) == folder
    assert model_name(folder) == "model"
    done = check(folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder}: all 3 files can be read\n")


def test_of_a_cache_the_main_snapshot_is_the_checkpoint(tmp_path: Path) -> None:
    cached(tmp_path, "ffff", main=None)
    model = cached(tmp_path)
    folder = checkpoint_folder(model)
    assert folder == model / "snapshots" / COMMIT
    assert checkpoint_folder(folder) == folder
    assert model_name(folder) == "Model-35B"
    assert check(model).exit_code == 0


def test_the_only_snapshot_needs_no_ref(tmp_path: Path) -> None:
    model = cached(tmp_path, main=None)
    assert checkpoint_folder(model).name == COMMIT


def test_of_several_snapshots_without_a_ref_one_must_be_named(tmp_path: Path) -> None:
    cached(tmp_path, "aaaa", main=None)
    model = cached(tmp_path, "bbbb", main=None)
    with pytest.raises(ValueError, match=r"^model: .*name one of its snapshots \(aaaa, bbbb\)"):
        checkpoint_folder(model)


def test_a_snapshot_without_its_blobs_is_told_what_to_mount(tmp_path: Path) -> None:
    model = cached(tmp_path)
    mounted = tmp_path / "mounted"
    (model / "snapshots" / COMMIT).rename(mounted)
    done = check(mounted)
    assert done.exit_code == 2
    assert f"error: MODEL_DIR: {mounted}/config.json is a link to ../../blobs/" in done.stderr
    assert "the model's whole folder (models--ORG--NAME)" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("files", "load_format", "why"),
    [
        ((), "auto", "is an empty folder"),
        (("README.md",), "auto", "is not a checkpoint (it has no config.json)"),
        ((CONFIG,), "auto", "tokenizer.json is missing"),
        ((CONFIG, "tokenizer.json"), "auto", "model.safetensors is missing"),
        ((CONFIG, "tokenizer.json"), "dummy", ""),
        ((CONFIG, "tokenizer.json", INDEX), "auto", "is no safetensors index"),
    ],
)
def test_what_is_missing_is_named(
    tmp_path: Path, files: tuple[str, ...], load_format: str, why: str
) -> None:
    done = check(plain(tmp_path / "model", files), load_format)
    assert done.exit_code == (2 if why else 0)
    assert why in done.stderr


def test_every_shard_of_an_index_is_looked_at(tmp_path: Path) -> None:
    folder = plain(tmp_path / "model", (CONFIG, "tokenizer.json", "a.safetensors"))
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (folder / INDEX).write_text(json.dumps(index))
    assert weight_files(folder) == [INDEX, "a.safetensors", "b.safetensors"]
    assert "b.safetensors is missing" in check(folder).stderr


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert "does not exist" in check(tmp_path / "none").stderr
    (tmp_path / "file").touch()
    assert "is not a folder" in check(tmp_path / "file").stderr


UNREADABLE = """
import os, sys
from pathlib import Path
from deploy.check_model import main, typer
os.setuid(10001)
try:
    main(Path(sys.argv[1]))
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="another user can only be had as root")
@pytest.mark.parametrize("closed", ["model", "model/config.json"])
def test_a_folder_of_another_user(tmp_path: Path, closed: str) -> None:
    folder = plain(tmp_path / "model")
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o055 != 0o055:
            parent.chmod(parent.stat().st_mode | 0o055)
    (tmp_path / closed).chmod(0o600)
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE, str(folder)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    said = f"error: MODEL_DIR: {tmp_path / closed} cannot be read by user 10001: chmod -R a+rX "
    assert done.stderr.startswith(f"{said}{folder} "), done.stderr
    assert done.returncode == 2


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    folder = plain(tmp_path / "model", (CONFIG,))
    (folder / "tokenizer.json").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read: Is a directory"):
        require_readable(folder, ["tokenizer.json"])
