"""``baton bench`` as part of ``baton``: all there, and quick to start."""

import subprocess
import sys

from typer.testing import CliRunner

from deploy.cli import app

COMMANDS = (
    "throughput", "load", "score", "compare", "report",
    "correctness", "conformance", "scale", "gpu", "interference",
)  # fmt: skip
GPU_MODULES = ("profile_step", "step")
HEAVY = ("torch", "transformers", "tokenizers", "uvloop", "numpy")


def test_every_command_has_its_help() -> None:
    listed = CliRunner().invoke(app, ["bench", "--help"]).stdout
    for command in COMMANDS:
        assert command in listed
        assert CliRunner().invoke(app, ["bench", command, "--help"]).exit_code == 0


HELP_OF_EACH = """
import runpy, sys
for module in sys.argv[1:]:
    sys.argv = [module, "--help"]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, module
"""


def test_help_needs_no_gpu() -> None:
    modules = [f"bench.{module}" for module in GPU_MODULES]
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_EACH, *modules], capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sage:") == len(modules)


def test_what_is_heavy_waits_until_it_is_needed() -> None:
    code = f"import sys, deploy.cli; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
