"""A report: one HTML file that holds all it shows and fetches nothing."""

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from bench.html.elements import facts, failures, section
from bench.html.generic import generic
from bench.html.load import load, sweep
from bench.html.throughput import headline, throughput
from bench.html.timeline import gpus, timeline
from bench.html.verdict import verdict


def _together(found: dict[str, Any]) -> str:
    """Throughput runs are drawn all in one, before the others."""
    return ""


_OWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "load": load,
    "sweep": sweep,
    "throughput": _together,
}
STYLE = Path(__file__).resolve().parent / "style.css"


def render(
    documents: Sequence[dict[str, Any]],
    names: Sequence[str] | None = None,
    model: str | None = None,
) -> str:
    """Results of any kinds on one page; throughput runs share their charts. ``names`` tell them
    apart; ``model`` says which one was served where the server's name for it does not."""
    names = names or [_name(found) for found in documents]
    title = "baton bench: " + ", ".join(dict.fromkeys(str(found["kind"]) for found in documents))
    parts = [_state(name, found) for name, found in zip(names, documents, strict=True)]
    together = [
        (name, found)
        for name, found in zip(names, documents, strict=True)
        if found["kind"] == "throughput" and found["results"]
    ]
    if together:
        runs, their_names = [found for _, found in together], [name for name, _ in together]
        parts.append(throughput(runs, their_names, model))
    for name, found in zip(names, documents, strict=True):
        parts.append(_own(found))
        parts.append(_circumstances(name, found, alone=len(documents) == 1))
    head = f"<meta charset='utf-8'><title>{escape(title)}</title><style>{STYLE.read_text()}</style>"
    view = "<meta name='viewport' content='width=device-width, initial-scale=1'>"
    body = f"<h1>{escape(title)}</h1>{''.join(parts)}"
    return f"<!doctype html><html lang='en'><head>{head}{view}</head><body>{body}</body></html>\n"


def _name(found: dict[str, Any]) -> str:
    server = found["server"]
    return f"{server.get('model') or found['kind']} at {server.get('url', '')}"


def _state(name: str, found: dict[str, Any]) -> str:
    when = escape(str(found["environment"].get("at", "")))
    lead = f"<p class='lead'>{escape(name)} · {when}</p>"
    first = headline(found) if found["kind"] == "throughput" and found["results"] else ""
    return lead + first + verdict(found)


def _own(found: dict[str, Any]) -> str:
    results = found["results"]
    if not results:
        return ""
    parts = [_OWN.get(found["kind"], generic)(found), timeline(results.get("timeline") or [])]
    parts.append(gpus(results.get("gpu") or []))
    if found["kind"] in _OWN:
        parts.append(section("Failures", failures(results["failures"])))
    return "".join(parts)


def _circumstances(name: str, found: dict[str, Any], *, alone: bool) -> str:
    suffix = "" if alone else f": {name}"
    return (
        section(f"Server{suffix}", facts(found["server"]))
        + section(f"Settings{suffix}", facts(found["settings"]))
        + section(f"Environment{suffix}", facts(found["environment"]))
    )
