"""``baton bench`` as part of ``baton``: all there, and quick to start."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from deploy.cli import app

COMMANDS = (
    "throughput", "load", "score", "compare", "report",
    "correctness", "conformance", "scale", "gpu",
)  # fmt: skip
GPU_MODULES = (
    "company", "handoff_copy", "kernels_mixer", "kernels_moe", "kernels_sampling", "loading",
    "profile_step", "step",
)  # fmt: skip
HEAVY = ("torch", "transformers", "tokenizers", "uvloop", "numpy")


def test_every_command_has_its_help() -> None:
    listed = CliRunner().invoke(app, ["bench", "--help"]).stdout
    for command in COMMANDS:
        assert command in listed
        assert CliRunner().invoke(app, ["bench", command, "--help"]).exit_code == 0


@pytest.mark.parametrize("module", GPU_MODULES)
def test_help_needs_no_gpu(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{module}", "--help"], capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "sage:" in done.stdout


def test_what_is_heavy_waits_until_it_is_needed() -> None:
    code = f"import sys, deploy.cli; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
