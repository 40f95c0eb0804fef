"""Which variants of the kernels a start needed, in a file beside Triton's cache.

A variant is what Triton compiles a kernel for: the types of its arguments, how pointers are
aligned, constants, options and the GPU. It is known when the kernel is launched, so a worker
compiles them one after another while it warms up. Each start therefore notes them, and where the
kernels or Triton have changed since, the next start has all compiled at once (compile_ahead.py).

A note that is old or wrong costs time only: what a launch does not find in Triton's cache is
compiled then.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex

_ENGINE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Variants:
    """``sources``: of what they were compiled (``current_sources``). ``arch``: of the GPU, 90 for
    Hopper. ``notes``: one JSON object each (notes.py)."""

    sources: str
    arch: int
    notes: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> "Variants":
        """Raises OSError, or ValueError where the file holds something else."""
        match json.loads(file.read_text()):
            case {"sources": str(sources), "arch": int(arch), "variants": [*notes]} if all(
                isinstance(note, dict) and "kernel" in note for note in notes
            ):
                return cls(sources, arch, tuple(json.dumps(note) for note in notes))
        raise ValueError(f"{file} holds no variants of kernels")

    def write(self, file: Path) -> None:
        """Whole or not at all, whatever else reads and writes it. Raises OSError."""
        notes = [json.loads(note) for note in self.notes]
        content = {"sources": self.sources, "arch": self.arch, "variants": notes}
        part = file.with_suffix(f".{token_hex(4)}")
        part.write_text(json.dumps(content))
        part.replace(file)


def current_sources() -> str:
    """Changes with the kernels' sources and with Triton's version."""
    digest = hashlib.sha256(version("triton").encode())
    for folder in ("kernels", "spread"):
        for source in sorted((_ENGINE / folder).glob("*.py")):
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
