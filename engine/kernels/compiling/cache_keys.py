"""Makes the kernels' keys in Triton's cache equal in every process.

Triton hashes a kernel with the functions that it calls and the globals that they read, and which of
these globals it finds depends on which kernels it has hashed before. So processes that launch
kernels in another order, as prefill and decode workers do, would compile some of them again.
"""

from importlib import import_module
from pathlib import Path

from triton.runtime import JITFunction

from engine.kernels.triton_dot import INTERPRETED

PATTERNS = "gluon_*.py", "triton_*.py"
"""Files that define kernels."""
_ENGINE = Path(__file__).resolve().parents[2]


def settle_cache_keys() -> None:
    """Hash every kernel in a fixed order; call it before any kernel is launched. In the interpreter
    there is none to hash."""
    if INTERPRETED:
        return
    for folder in ("kernels", "spread"):
        of_folder = (file for each in PATTERNS for file in (_ENGINE / folder).rglob(each))
        for source in sorted(of_folder):
            within = source.relative_to(_ENGINE).with_suffix("")
            module = import_module(".".join(("engine", *within.parts)))
            for name in sorted(vars(module)):
                kernel = getattr(module, name)
                if isinstance(kernel, JITFunction):
                    _ = kernel.cache_key
