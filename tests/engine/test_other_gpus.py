"""The kernels of one model compile, and fit in shared memory, on GPUs that cannot be had here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.examples import ALL

ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
ARCHS = [80, 86, 89, 90, 100, 120] if ALL else [120]
"""Of an ordinary run: with e4m3 and programmatic launch, in the least shared memory. One variant is
compiled then of kernels that need little of it, without lines of source."""
MODELS = ["qwen3.5-9b", "qwen3.5-122b-a10b"] if ALL else ["qwen3.5-9b"]
"""Heads of 256 dimensions with DeltaNet and dense layers; the most heads of a KV head, with
experts."""


@pytest.mark.timeout(len(ARCHS) * LIMIT_S + 20)
@pytest.mark.parametrize("model", MODELS)
def test_the_kernels_of_a_model_compile(model: str, tmp_path: Path) -> None:
    """Without --model, all others too."""
    one_each = [] if ALL else ["--one-each"]
    found = subprocess.run(
        [
            sys.executable, "-m", "tests.engine.compile_kernels",
            "--arch", ",".join(map(str, ARCHS)), "--model", model, *one_each,
        ],
        env=os.environ
        | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
        | ({} if ALL else {"TRITON_DISABLE_LINE_INFO": "1"}),
        cwd=ROOT, capture_output=True, text=True, timeout=len(ARCHS) * LIMIT_S,
    )  # fmt: skip
    assert found.returncode == 0, f"{found.stdout[-2000:]}\n{found.stderr[-2000:]}"
    for arch in ARCHS:
        compiled = re.findall(rf"^sm_{arch} \w+: \d+ B shared", found.stdout, re.MULTILINE)
        assert len(compiled) > (20 if one_each else 30), found.stdout
