"""``baton bench`` as part of ``baton``: all there, and quick to start."""

import subprocess
import sys

from typer.testing import CliRunner

from deploy.cli import app

COMMANDS = (
    "throughput", "load", "score", "compare", "report",
    "correctness", "conformance", "scale", "gpu",
)  # fmt: skip
HEAVY = ("torch", "transformers", "tokenizers", "uvloop", "numpy")


def test_every_command_has_its_help() -> None:
    listed = CliRunner().invoke(app, ["bench", "--help"]).stdout
    for command in COMMANDS:
        assert command in listed
        assert CliRunner().invoke(app, ["bench", command, "--help"]).exit_code == 0


def test_what_is_heavy_waits_until_it_is_needed() -> None:
    code = f"import sys, deploy.cli; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
