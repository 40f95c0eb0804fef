"""Result files: what was measured, on which server, with which settings, and how it ended."""

import json
import math
from pathlib import Path
from typing import Any

FORMAT = 1


class ResultFileBad(Exception):
    """The file is no result, or has another kind than wanted; the message says which."""


def document(
    kind: str,
    *,
    environment: dict[str, Any],
    settings: dict[str, Any],
    results: dict[str, Any],
    server: dict[str, Any] | None = None,
    stopped: str | None = None,
    problems: list[str] | None = None,
) -> dict[str, Any]:
    """A result document. ``stopped``: why a run ended before its time. ``problems``: why it is not
    good."""
    found = problems or []
    return {
        "format": FORMAT,
        "kind": kind,
        "complete": stopped is None,
        "stopped": stopped,
        "ok": stopped is None and not found,
        "problems": found,
        "environment": environment,
        "server": server or {},
        "settings": settings,
        "results": results,
    }


def write(path: Path, found: dict[str, Any]) -> None:
    """Write a document whole or not at all: a run killed meanwhile leaves the old file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(_text(rounded(found)) + "\n")
    beside.replace(path)


def place(path: Path, found: dict[str, Any]) -> Path:
    """The path to write ``found`` to. A run that failed or stopped early never replaces an earlier
    file at ``path``: its own goes beside it, as ``NAME.failed.json``."""
    earlier = path.exists() and path.stat().st_size > 0
    if found["ok"] or not earlier:
        return path
    return path.with_name(f"{path.stem}.failed{path.suffix}")


def save(path: Path, found: dict[str, Any]) -> Path:
    """Write ``found`` to the path that ``place`` gives, which is returned."""
    placed = place(path, found)
    write(placed, found)
    return placed


def load(path: Path, *kinds: str) -> dict[str, Any]:
    """Read a result file. Raises ResultFileBad if it is missing, no result, or of none of
    ``kinds``."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultFileBad(f"{path}: {error}") from None
    if not isinstance(found, dict) or "kind" not in found or "results" not in found:
        raise ResultFileBad(f"{path}: not a result of baton bench")
    if kinds and found["kind"] not in kinds:
        raise ResultFileBad(f"{path}: a result of {found['kind']}, not of {' or '.join(kinds)}")
    return found


def rounded(value: Any) -> Any:
    """Round to five digits, more than any figure has; NaN and infinities become null."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    return value


def _text(value: Any, indent: str = "") -> str:
    """JSON with one entry per line; a list or object without nested entries is one line."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not any(
        isinstance(i, dict | list) and i for i in inner
    ):
        return json.dumps(value, ensure_ascii=False)
    deeper = indent + " "
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {_text(item, deeper)}" for key, item in value.items()]
        return "{\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _text(item, deeper) for item in value) + f"\n{indent}]"


def one_line(headline: dict[str, Any]) -> str:
    """The headline as JSON, the last line of stdout of every command."""
    return json.dumps(rounded(headline), ensure_ascii=False)
