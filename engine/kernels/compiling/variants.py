"""The kernel variants that a start needed, in a file beside Triton's cache.

A variant is what Triton compiles a kernel for: the types of its arguments, the alignment of
pointers, constants, options and the GPU. It is only known when the kernel is launched, so a worker
would compile variants one after another while it warms up. Therefore each start notes them, and if
the kernels or Triton have changed since, the next start compiles all in parallel
(compile_ahead.py).

An old or wrong note only costs time: a variant that is missing in Triton's cache is compiled at its
launch.
"""

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from secrets import token_hex

_ENGINE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Variants:
    """Noted variants. ``sources``: the sources from which they were compiled (``current_sources``).
    ``arch``: the GPU's architecture, 90 for Hopper. ``notes``: one JSON object each (notes.py)."""

    sources: str
    arch: int
    notes: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> "Variants":
        """Read a file. Raises OSError, or ValueError if the file holds something else."""
        match json.loads(file.read_text()):
            case {"sources": str(sources), "arch": int(arch), "variants": [*notes]} if all(
                isinstance(note, dict) and "kernel" in note for note in notes
            ):
                return cls(sources, arch, tuple(json.dumps(note) for note in notes))
        raise ValueError(f"{file} holds no variants of kernels")

    def write(self, file: Path) -> None:
        """Write the file atomically, since other processes may read and write it. Raises
        OSError."""
        notes = [json.loads(note) for note in self.notes]
        content = {"sources": self.sources, "arch": self.arch, "variants": notes}
        part = file.with_suffix(f".{token_hex(4)}")
        part.write_text(json.dumps(content))
        part.replace(file)


def sources(*patterns: str) -> list[Path]:
    """The files beside kernels whose names match one of ``patterns``, in a fixed order."""
    folders = _ENGINE / "kernels", _ENGINE / "spread"
    return [
        file
        for folder in folders
        for file in sorted(file for pattern in patterns for file in folder.rglob(pattern))
    ]


def module_of(source: Path) -> str:
    """The name of a file's module."""
    return ".".join(source.relative_to(_ENGINE.parent).with_suffix("").parts)


def current_sources() -> str:
    """A digest of the kernels' sources and Triton's version."""
    digest = hashlib.sha256(version("triton").encode())
    for source in sources("*.py"):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
