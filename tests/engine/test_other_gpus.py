"""The kernels of one model compile, and fit in shared memory, on GPUs that cannot be had here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ALL = bool(os.environ.get("BATON_TEST_ALL"))
ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
ARCHS = [80, 86, 89, 90, 100, 120] if ALL else [80, 120]
"""Of an ordinary run: without e4m3 and programmatic launch, and with both in the least shared
memory."""


@pytest.mark.timeout(LIMIT_S + 20)
@pytest.mark.parametrize("arch", ARCHS)
def test_the_kernels_of_a_model_compile(arch: int, tmp_path: Path) -> None:
    """Heads of 256 dimensions, DeltaNet and dense layers; without --model, all others too."""
    found = subprocess.run(
        [
            sys.executable, "-m", "tests.engine.compile_kernels",
            "--arch", str(arch), "--model", "qwen3.5-9b",
        ],
        env=os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)},
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert found.returncode == 0, f"{found.stdout[-2000:]}\n{found.stderr[-2000:]}"
    assert found.stdout.count("B shared") > 30, found.stdout
