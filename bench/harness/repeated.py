"""The result files of a comparison: single files, and folders with the repetitions of one run."""

from collections.abc import Sequence
from pathlib import Path

from bench.result_file import ResultFileBad


def expand(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Files by the name of their run. A folder is a run of its own name, and its JSON files are the
    repetitions; a file is a run of its own. Raises ResultFileBad for a folder without any."""
    files = [(path, _files(path)) for path in paths]
    names = [path.resolve().name if path.is_dir() else path.stem for path, _ in files]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    return [(name, file) for name, (_, found) in zip(names, files, strict=True) for file in found]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(path.glob("*.json"))
    if not found:
        raise ResultFileBad(f"{path}: a folder without results (*.json)")
    return found
