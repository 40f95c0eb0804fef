"""Compiles the kernels of a start in parallel before they are first launched (variants.py)."""

import hashlib
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from triton import knobs

from engine.kernels.compiling.cache_keys import settle_cache_keys
from engine.kernels.compiling.notes import noted
from engine.kernels.compiling.variants import Variants, current_sources

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""The longest wait for kernels that are compiled ahead; after it they are compiled at their
launch."""
_notes: dict[str, None] = {}
"""The variants that this process has used; it compiles each once for all its engines."""


class CompileAhead:
    """The compilation of one engine's kernels, made before any of them is launched. The variants
    depend only on ``what``. If an earlier start, or Baton itself, has noted the variants needed, a
    process of its own compiles them from now on."""

    def __init__(self, what: object, arch: int, brought: tuple[str, ...] = ()) -> None:
        """``arch``: the GPU's architecture, 90 for Hopper. ``brought``: notes to use if no earlier
        start has left any."""
        name = hashlib.sha256(repr((what, arch)).encode()).hexdigest()[:16]
        self._file = Path(knobs.cache.dir) / f"baton-variants-{name}.json"
        self._sources, self._arch = current_sources(), arch
        self.num_compiled = 0
        """Number of variants that this process has compiled."""
        self._process = self._compile() if self._is_stale(brought) else None
        settle_cache_keys()
        knobs.runtime.jit_post_compile_hook = self._took
        knobs.compilation.listener = self._count

    def wait(self) -> None:
        """Wait until all noted variants are compiled. A failure is logged; the variant is then
        compiled at its launch."""
        if self._process is None:
            return
        began = time.perf_counter()
        try:
            code = self._process.wait(WAIT_S)
        except subprocess.TimeoutExpired:  # the process waits for another worker's compilation
            self._process.kill()
            code = self._process.wait()
        waited_s = time.perf_counter() - began
        if code:
            log.warning("compiling kernels ahead failed (status %d); see above", code)
        else:
            log.info("kernels were compiled ahead; waited %.1f s for the last of them", waited_s)

    def note(self) -> None:
        """Note the variants used since this object was made, for the next start."""
        knobs.runtime.jit_post_compile_hook = knobs.compilation.listener = None
        log.info("%d variants of kernels, %d compiled here", len(_notes), self.num_compiled)
        try:
            Variants(self._sources, self._arch, tuple(_notes)).write(self._file)
        except OSError as error:
            log.warning("the next start will not compile its kernels ahead: %s", error)

    def _is_stale(self, brought: tuple[str, ...]) -> bool:
        """True if the noted variants are of other sources, and have to be compiled. If no notes can
        be read, ``brought`` takes their place, and has to be compiled too."""
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
        command = [
            sys.executable,
            "-m",
            "engine.kernels.compiling.compile_variants",
            str(self._file),
        ]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def _took(self, *_: object, compile: dict[str, Any], **__: object) -> None:
        try:
            _notes[noted(compile["specialization_data"])] = None
        except ValueError as error:
            log.warning("the next start will not compile this kernel ahead: %s", error)

    def _count(self, *_: object, cache_hit: bool, **__: object) -> None:
        self.num_compiled += not cache_hit
