"""Makes the kernels' keys in Triton's cache equal in every process.

Triton hashes a kernel with the functions that it calls and the globals that they read, and which of
these globals it finds depends on which kernels it has hashed before. So processes that launch
kernels in another order, as prefill and decode workers do, would compile some of them again.
"""

from importlib import import_module

from triton.runtime import JITFunction

from engine.kernels.compiling.variants import module_of, sources
from engine.kernels.triton_dot import INTERPRETED

PATTERNS = "gluon_*.py", "triton_*.py"
"""Files that define kernels."""


def settle_cache_keys() -> None:
    """Hash every kernel in a fixed order; call it before any kernel is launched. In the interpreter
    there is none to hash."""
    if INTERPRETED:
        return
    for source in sources(*PATTERNS):
        module = import_module(module_of(source))
        for name in sorted(vars(module)):
            kernel = getattr(module, name)
            if isinstance(kernel, JITFunction):
                _ = kernel.cache_key
