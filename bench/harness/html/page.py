"""A report: one HTML file that contains everything it shows and fetches nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from bench.harness.html import sections
from bench.harness.html.agents import agents
from bench.harness.html.charts import MatplotlibMissing
from bench.harness.html.sections import TERMS, Section

HERE = Path(__file__).resolve().parent


def render(
    documents: Sequence[dict[str, Any]],
    names: Sequence[str] | None = None,
    model: str | None = None,
) -> str:
    """Render results of any kinds on one page; throughput runs share their charts. ``names`` tell
    the results apart. ``model``: the model that was served, if its served name does not say so.
    Raises MatplotlibMissing."""
    from jinja2 import Environment, FileSystemLoader

    names = names or [_name(found) for found in documents]
    named = list(zip(names, documents, strict=True))
    kinds = dict.fromkeys(str(found["kind"]) for found in documents)
    states = [
        {
            "name": name,
            "at": found["environment"].get("at", ""),
            "cards": sections.headline(found) if _is_throughput(found) else [],
            "verdict": verdict(found),
            "sums": len(_checks(found)),
        }
        for name, found in named
    ]
    parts: list[Section] = []
    if together := [(name, found) for name, found in named if _is_throughput(found)]:
        runs, of_runs = [found for _, found in together], [name for name, _ in together]
        parts += sections.throughput(runs, of_runs, model)
    for name, found in named:
        parts += _own(found)
        suffix = "" if len(documents) == 1 else f": {name}"
        for part in ("server", "settings", "environment"):
            parts.append(Section(part.capitalize() + suffix, facts=found[part]))
    loader = FileSystemLoader(HERE)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": cell}
    title = "baton bench: " + ", ".join(kinds)
    page = environment.get_template("page.html")
    return page.render(title=title, states=states, sections=parts, terms=TERMS)


def write_page(
    out: Path,
    documents: Sequence[dict[str, Any]],
    names: Sequence[str] | None = None,
    model: str | None = None,
) -> None:
    """Write what ``render`` gives into a file. Ends in typer.BadParameter without matplotlib."""
    try:
        page = render(documents, names, model)
    except MatplotlibMissing as error:
        raise typer.BadParameter(str(error)) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page)


def cell(value: Any) -> str:
    """A value as text, such as 13,437 or 2.39 or 0.0041."""
    if isinstance(value, float):
        if value == 0 or abs(value) >= 100:
            return f"{value:,.0f}"
        return f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.1e}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(cell, value)) or "–"
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell(item)}" for name, item in value.items()) or "–"
    return "–" if value is None else str(value)


def verdict(found: dict[str, Any]) -> list[str]:
    """Why the run is not good, wrong spot checks included; empty if it is good."""
    said = [f"stopped: {found['stopped']}"] if found["stopped"] else []
    said += found["problems"]
    checks = _checks(found)
    if wrong := checks.count(False):
        said = said or ["complete, and no request failed; but:"]
        said.append(
            f"spot checks: {wrong} of {len(checks)} sums were answered wrong. Random weights "
            "cannot add; with trained weights it means that the text may be wrong"
        )
    return said


def _checks(found: dict[str, Any]) -> list[bool]:
    levels = found["results"]["levels"] if _is_throughput(found) else []
    return [check["passed"] for level in levels for check in level.get("spot_checks") or []]


def _own(found: dict[str, Any]) -> list[Section]:
    results, kind = found["results"], found["kind"]
    if not results:
        return []
    shown = {
        "throughput": lambda _: [],
        "load": sections.load,
        "sweep": sections.sweep,
        "agents": agents,
    }
    parts = [*shown.get(kind, sections.generic)(found)]
    parts += sections.timeline(results.get("timeline") or [])
    parts += sections.gpus(results.get("gpu") or [])
    return [*parts, sections.failures(results["failures"])] if kind in shown else parts


def _is_throughput(found: dict[str, Any]) -> bool:
    return found["kind"] == "throughput" and bool(found["results"])


def _name(found: dict[str, Any]) -> str:
    server = found["server"]
    return f"{server.get('model') or found['kind']} at {server.get('url', '')}"
