"""A report: one HTML file that contains everything it shows and fetches nothing."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from bench.harness.html import sections
from bench.harness.html.agents import agents, levels_of
from bench.harness.html.charts import MatplotlibMissing
from bench.harness.html.runs import grouped
from bench.harness.html.sections import TERMS, Section
from bench.harness.html.throughput import headline, throughput

HERE = Path(__file__).resolve().parent
CANNOT_ADD = ("tiny",)
"""Served names (or folders) of models that are known to answer the spot checks' sums wrong."""
Named = Sequence[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class View:
    """How results are shown. ``model``: the model that was served, if its served name does not say
    so. ``gpus``: how many GPUs served each run; without them those of the machine that recorded
    it. ``random_weights``: the model cannot add, so wrong sums say nothing. ``figures``: a folder
    for each figure as SVG, PNG and CSV."""

    model: str | None = None
    gpus: Sequence[int] = ()
    random_weights: bool = False
    figures: Path | None = None


def contents(named: Named, view: View) -> list[Section]:
    """The sections of results of any kinds. Results of one name are repetitions of one run; all
    throughput runs share their figures."""
    parts: list[Section] = []
    if together := [(name, found) for name, found in named if _is_throughput(found)]:
        parts += throughput(grouped(together, view.gpus), view.model)
    if loads := [(name, found) for name, found in named if _is_agents(found)]:
        parts.append(levels_of(grouped(loads, () if together else view.gpus)))
    for name, found in _told_apart(named):
        suffix = "" if len(named) == 1 else f": {name}"
        for part in _own(found):
            part.title += suffix
            parts.append(part)
        for about in ("server", "settings", "environment"):
            parts.append(Section(about.capitalize() + suffix, facts=found[about]))
    return parts


def render(named: Named, view: View | None = None) -> str:
    """Render results with their names on one page. Raises MatplotlibMissing."""
    view = view or View()
    return _page(named, view, contents(named, view))


def _page(named: Named, view: View, parts: Sequence[Section]) -> str:
    from jinja2 import Environment, FileSystemLoader

    kinds = dict.fromkeys(str(found["kind"]) for _, found in named)
    states = [
        {
            "name": name,
            "at": found["environment"].get("at", ""),
            "warning": _given_acceptance(found["server"]),
            "cards": headline(found) if _is_throughput(found) else [],
            "verdict": verdict(found, _cannot_add(found, view)),
            "sums": _sums(found),
        }
        for name, found in _told_apart(named)
    ]
    loader = FileSystemLoader(HERE)
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"cell": cell}
    title = "baton bench: " + ", ".join(kinds)
    page = environment.get_template("page.html")
    return page.render(title=title, states=states, sections=parts, terms=TERMS)


def write_page(out: Path, named: Named, view: View) -> None:
    """Write what ``render`` gives into a file, and the figures. Ends in typer.BadParameter without
    matplotlib, or if ``view.gpus`` has not a number for each run."""
    try:
        parts = contents(named, view)
        page = _page(named, view, parts)
        if view.figures is not None:
            write_figures(view.figures, parts)
    except (MatplotlibMissing, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page)


def write_figures(folder: Path, parts: Sequence[Section]) -> None:
    """Write each figure as SVG and PNG, and its numbers as CSV. Names tell section and figure."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in parts:
        for figure in part.figures:
            stem = re.sub(r"[^a-z0-9]+", "-", f"{part.title} {figure.title}".lower()).strip("-")
            (folder / f"{stem}.svg").write_bytes(figure.chart.file("svg"))
            (folder / f"{stem}.png").write_bytes(figure.chart.file("png"))
            (folder / f"{stem}.csv").write_text(figure.chart.csv())


def cell(value: Any, name: str = "") -> str:
    """A value as text, such as 13,437 or 2.39 or 0.0041; a seed is a name, 1673581725."""
    if name == "seed":
        return str(value)
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
        return ", ".join(f"{key} {cell(item, key)}" for key, item in value.items()) or "–"
    return "–" if value is None else str(value)


def verdict(found: dict[str, Any], cannot_add: bool = False) -> list[str]:
    """Why the run is not good, wrong spot checks included unless the model is known not to add;
    empty if it is good."""
    said = [f"stopped: {found['stopped']}"] if found["stopped"] else []
    said += found["problems"]
    checks = _checks(found)
    if (wrong := checks.count(False)) and not cannot_add:
        said = said or ["complete, and no request failed; but:"]
        said.append(
            f"spot checks: {wrong} of {len(checks)} sums were answered wrong. Random weights "
            "cannot add; with trained weights it means that the text may be wrong"
        )
    return said


def _given_acceptance(server: dict[str, Any]) -> str:
    """A warning that the speed is not that of a real model; "" where it is."""
    given = server.get("given_draft_acceptance")
    if given is None:
        return ""
    return f"drafts were accepted with a given probability of {given:g}, whatever the model chose"


def _sums(found: dict[str, Any]) -> str:
    """What a good run says of its spot checks; wrong ones are those of a model that cannot add."""
    checks = _checks(found)
    if not checks:
        return ""
    right = f"{checks.count(True)} of {len(checks)} sums right"
    known = "" if all(checks) else ", which is known of this model and says nothing of the run"
    return f"; spot checks: {right}{known}"


def _cannot_add(found: dict[str, Any], view: View) -> bool:
    return view.random_weights or Path(found["server"].get("model") or "").name in CANNOT_ADD


def _told_apart(named: Named) -> Named:
    """The names with a number each where several are the same."""
    names = [name for name, _ in named]
    seen: Counter[str] = Counter()
    found = []
    for name, document in named:
        seen[name] += 1
        again = names.count(name) > 1
        found.append((f"{name}, {seen[name]}" if again else name, document))
    return found


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
    parts += sections.ramp(results.get("ramp") or [])
    parts += sections.gpus(results.get("gpu") or [])
    return [*parts, sections.failures(results["failures"])] if kind in shown else parts


def _is_throughput(found: dict[str, Any]) -> bool:
    return found["kind"] == "throughput" and bool(found["results"])


def _is_agents(found: dict[str, Any]) -> bool:
    return found["kind"] == "agents" and bool(found["results"])


def name_of(found: dict[str, Any]) -> str:
    """A name for a result that stands alone: its model and its server."""
    server = found["server"]
    return f"{server.get('model') or found['kind']} at {server.get('url', '')}"
