"""Kernels that have changed are compiled before a start launches them, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from triton import knobs

from engine.kernels.compiling.compile_ahead import CompileAhead
from engine.kernels.compiling.variants import Variants

ROOT = Path(__file__).parents[2]


def test_kernels_that_changed_are_compiled_ahead_and_those_that_are_gone_forgotten(tmp_path):
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.engine.compile_ahead_twice"],
        cwd=ROOT, env={**settings, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == "1 0 True\n"


def test_variants_are_read_as_they_were_written(tmp_path):
    written = Variants("sources", 90, ('{"kernel": "engine.a"}', '{"kernel": "engine.b"}'))
    written.write(tmp_path / "noted.json")
    assert Variants.read(tmp_path / "noted.json") == written
    assert [file.name for file in tmp_path.iterdir()] == ["noted.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"sources": "x", "arch": "90", "variants": []}',
        '{"sources": "x", "arch": 90, "variants": [{"name": "engine.a"}]}',
        '{"sources": "x", "arch": 90, "variants": [1]}',
    ],
)
def test_a_file_that_holds_something_else_is_a_value_error(tmp_path, content):
    (tmp_path / "noted.json").write_text(content)
    with pytest.raises(ValueError, match=r"noted|Expecting"):
        Variants.read(tmp_path / "noted.json")


def test_notes_that_cannot_be_read_are_replaced_by_those_that_are_brought(tmp_path, monkeypatch):
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    monkeypatch.setattr(knobs.compilation, "listener", None)
    monkeypatch.setattr(CompileAhead, "_compile", lambda self: None)
    brought = ('{"kernel": "engine.a"}',)
    CompileAhead("a model", 90, brought)
    (file,) = tmp_path.iterdir()
    assert Variants.read(file).notes == brought
    CompileAhead("a model", 90, ('{"kernel": "engine.b"}',))
    assert Variants.read(file).notes == brought
    file.write_text('{"sources": "x", "arch": 90, "variants": [{"name": "engine.a"}]}')
    CompileAhead("a model", 90, brought)
    assert Variants.read(file).notes == brought
