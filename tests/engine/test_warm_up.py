"""No request waits for a kernel to be compiled: warm-up has compiled what its batches need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", ["none", "nvfp4", "gemma-3-12b", "qwen1.5-moe-a2.7b"])
def test_no_batch_of_prompts_needs_a_kernel_that_is_not_warm(kind: str) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.engine.compiled_kernels", kind],
        cwd=ROOT, env={**settings, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == ""
