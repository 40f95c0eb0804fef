"""A start's kernels, compiled side by side before they are first launched (variants.py)."""

import hashlib
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from triton import knobs

from engine.kernels.cache_keys import settle_cache_keys
from engine.kernels.notes import noted
from engine.kernels.variants import Variants, current_sources

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""For kernels that are compiled ahead, which is given up before; then they are compiled at their
launch."""
_notes: dict[str, None] = {}
"""Of this process, which compiles each variant once for all its engines."""


class CompileAhead:
    """One start of an engine whose kernels' variants depend on ``what`` alone, made before any of
    them is launched. Compiles in a process of its own from now on, where an earlier start has noted
    what is needed, or Baton brings notes of it."""

    def __init__(self, what: object, arch: int, brought: tuple[str, ...] = ()) -> None:
        """``arch``: of the GPU, 90 for Hopper. ``brought``: notes for where no earlier start has
        left any."""
        name = hashlib.sha256(repr((what, arch)).encode()).hexdigest()[:16]
        self._file = Path(knobs.cache.dir) / f"baton-variants-{name}.json"
        self._sources, self._arch = current_sources(), arch
        self.num_compiled = 0
        """By this process."""
        self._process = self._compile() if self._is_stale(brought) else None
        settle_cache_keys()
        knobs.runtime.jit_post_compile_hook = self._took
        knobs.compilation.listener = self._count

    def wait(self) -> None:
        """Return when all that was noted is compiled. What fails is logged, and compiled at its
        launch."""
        if self._process is None:
            return
        began = time.perf_counter()
        try:
            code = self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:  # it waits for another worker's
            self._process.kill()
            code = self._process.wait()
        waited_s = time.perf_counter() - began
        if code:
            log.warning("compiling kernels ahead failed (status %d); see above", code)
        else:
            log.info("kernels were compiled ahead; waited %.1f s for the last of them", waited_s)

    def note(self) -> None:
        """Note the variants that were used since this was made, for the next start."""
        knobs.runtime.jit_post_compile_hook = knobs.compilation.listener = None
        log.info("%d variants of kernels, %d compiled here", len(_notes), self.num_compiled)
        try:
            Variants(self._sources, self._arch, tuple(_notes)).write(self._file)
        except OSError as error:
            log.warning("the next start will not compile its kernels ahead: %s", error)

    def _is_stale(self, brought: tuple[str, ...]) -> bool:
        """Whether there are variants of other sources; what is ``brought`` counts as such, where
        no notes can be read, and takes their place."""
        try:
            return Variants.read(self._file).sources != self._sources
        except (OSError, ValueError) as error:
            if not brought:
                if not isinstance(error, FileNotFoundError):
                    log.warning("kernels are not compiled ahead: %s", error)
                return False
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            Variants("none", self._arch, brought).write(self._file)
        except OSError as error:
            log.warning("kernels are not compiled ahead: %s", error)
            return False
        return True

    def _compile(self) -> "subprocess.Popen[bytes]":
        log.info("kernels are new, or have changed since the last start: compiling them ahead")
        command = [sys.executable, "-m", "engine.kernels.compile_variants", str(self._file)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _took(self, *_: object, compile: dict[str, Any], **__: object) -> None:
        try:
            _notes[noted(compile["specialization_data"])] = None
        except ValueError as error:
            log.warning("the next start will not compile this kernel ahead: %s", error)

    def _count(self, *_: object, cache_hit: bool, **__: object) -> None:
        self.num_compiled += not cache_hit
