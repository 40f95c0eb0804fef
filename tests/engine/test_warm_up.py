"""No request waits for a kernel to be compiled: warm-up has compiled what its batches need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("quantize", ["none", "nvfp4"])
def test_no_batch_of_prompts_needs_a_kernel_that_is_not_warm(quantize: str) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.engine.compiled_kernels", quantize],
        cwd=ROOT, env={**settings, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == ""
