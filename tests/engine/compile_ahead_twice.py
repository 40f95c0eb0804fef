"""``python -m tests.engine.compile_ahead_twice``: two starts, between which a kernel has changed.

For a Hopper GPU, but without one: kernels are compiled and not launched. Prints for each start how
many it has compiled itself. TRITON_CACHE_DIR is an empty folder; TRITON_INTERPRET must be off.
"""

import json
import shutil
from pathlib import Path

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from engine.kernels.compiling.compile_ahead import CompileAhead
from engine.kernels.compiling.compile_variants import NoGpu
from engine.kernels.compiling.variants import Variants
from engine.kernels.sampling.triton_mask import WORDS, _mask_kernel

ARCH = 90


def start() -> int:
    """How many kernels it has compiled."""
    ahead = CompileAhead("a model", ARCH)
    ahead.wait()
    _mask_kernel.device_caches.clear()
    use()
    ahead.note()
    return ahead.num_compiled


def use() -> None:
    """Compile a kernel as its launch does."""
    logits, bits = torch.zeros(2, 64), torch.zeros(2, 2, dtype=torch.int32)
    rows = torch.zeros(2, dtype=torch.int32)
    _mask_kernel.warmup(logits, rows, bits, 64, 2, 64, WORDS=WORDS, num_warps=4, grid=(1,))


def main() -> None:
    driver.set_active(NoGpu(GPUTarget("cuda", ARCH, 32)))
    cache = Path(knobs.cache.dir)
    first = start()
    (file,) = cache.glob("baton-variants-*.json")
    (note,) = Variants.read(file).notes
    for compiled in (each for each in cache.iterdir() if each.is_dir()):
        shutil.rmtree(compiled)
    gone = json.loads(note)
    gone["kernel"] += "_that_is_gone"
    Variants("other sources", ARCH, (json.dumps(gone), note)).write(file)
    print(first, start(), Variants.read(file).notes == (note,))


if __name__ == "__main__":
    main()
