"""No request waits for a kernel to be compiled: warm-up has compiled what its batches need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine import warm_up
from tests.examples import ALL
from transport.wire.layout import CacheLayout, PoolSize

LAYOUT = CacheLayout("bfloat16", 64, *[1] * 9)
ROOT = Path(__file__).parents[2]


LIMIT_S = 220.0
KINDS = ("none", "nvfp4", "gemma-3-12b", "qwen1.5-moe-a2.7b") if ALL else ("nvfp4", "gemma-3-12b")


@pytest.mark.timeout(LIMIT_S + 20)
def test_no_batch_of_prompts_needs_a_kernel_that_is_not_warm() -> None:
    settings = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, "-m", "tests.engine.compiled_kernels", *KINDS],
        cwd=ROOT, env={**settings, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    assert found.stdout == ""


@pytest.mark.parametrize("most", [512, 8192])
def test_no_batch_needs_more_memory_than_is_kept_free(most: int) -> None:
    batches = warm_up.batches(LAYOUT, PoolSize(1000, 8), 32_768, most, decodes=True)
    passes = [sum(len(row.token_ids or ()) for row in batch.rows) for _bindings, batch in batches]
    assert most - 64 <= max(passes) <= most  # the first 64 are a chunk of their own
