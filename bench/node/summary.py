"""A node's results beside one another, and beside what was predicted. Pure, but for reading files.

``tables`` makes of the parts' files, as many as there are, one document; ``lines`` shows it.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bench.harness.score import ScoreFailed, weighted
from bench.node.plan import Part, Served
from bench.node.settings import Settings
from bench.predict.__main__ import compared
from bench.predict.pools import Node
from bench.predict.tables import Table

BASIS = {
    "plain": "steps without drafts, measured with one decoding worker",
    "spread": "computed from bytes and measured exchanges; no such step was measured",
    "drafts": "steps with the draft layer loaded and no draft accepted, as with random weights",
}


def tables(settings: Settings, parts: Sequence[Part]) -> dict[str, Any]:
    """By stack: measured tokens a second, measured / predicted, and the headline of each part."""
    found: dict[str, Any] = {}
    for part in parts:
        document = _read(settings, part)
        if document is None or not document.get("results"):
            continue
        name = "machine" if part.kind == "doctor" else part.served.name
        here = found.setdefault(name, {})
        if part.kind in ("levels", "crowd"):
            _add_levels(here, document, node_of(settings.table, part.served), part.served)
            if counters := document["results"].get("counters"):
                here["counters"] = counters
        else:
            here[part.kind] = _headline(part, document["results"])
    return found


def node_of(table: Table | None, served: Served) -> Node | None:
    """What the stack's GPUs take; None: unknown."""
    if table is None or (served.mode != "plain" and not table.local.full_size):
        return None
    if served.mode == "drafts":
        return table.with_drafts(0, 0.0).node()
    return table.node(spread=served.mode == "spread")


def _add_levels(
    here: dict[str, Any], document: dict[str, Any], node: Node | None, served: Served
) -> None:
    rates = here.setdefault("total_tok_s", {})
    for level in document["results"]["levels"]:
        if level.get("total_tok_s") is not None:
            rates[level["concurrency"]] = level["total_tok_s"]
    try:
        here["score"] = weighted(rates)
    except ScoreFailed:
        here["score"] = None
    if node is not None:
        here["predicted_from"] = BASIS[served.mode]
        ratios = here.setdefault("measured_over_predicted", {})
        ratios |= compared(node, served.setup, document)


def _headline(part: Part, results: dict[str, Any]) -> dict[str, Any]:
    match part.kind:
        case "doctor":
            speeds = results["gb_per_s"].values()
            return {"pairs": len(speeds), "slowest_gb_per_s": min(speeds, default=None)}
        case "handoff":
            return {
                length: {
                    stage: stages["stages"][stage]
                    for stage in ("copy", "overhead", "total")
                    if stage in stages["stages"]
                }
                for length, stages in results.items()
            }
        case "interference":
            (found,) = results.values()
            phases = ("quiet", "disturbed")
            return {phase: found[phase].get("itl_p99_ms") for phase in phases}
        case "soak":
            names = (
                "passed",
                "handoffs",
                "digests_compared",
                "digest_mismatches",
                "kills",
                "clean",
            )
            return {name: results[name] for name in names if name in results}
        case _:
            raise AssertionError(part.kind)


def _read(settings: Settings, part: Part) -> dict[str, Any] | None:
    try:
        document = json.loads(settings.file(part).read_text())
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def lines(found: dict[str, Any]) -> Iterator[str]:
    """For a terminal: rates with the ratio to the predicted one, then the rest a line each."""
    stacks = {name: here for name, here in found.items() if "total_tok_s" in here}
    levels = sorted({level for here in stacks.values() for level in here["total_tok_s"]})
    if stacks:
        yield _row(["at once", *stacks])
        for level in levels:
            yield _row([str(level), *(_cell(here, level) for here in stacks.values())])
        scores = [here["score"] for here in stacks.values()]
        if any(score is not None for score in scores):
            yield _row(["score", *("–" if s is None else f"{s:,.0f}" for s in scores)])
    for name, here in found.items():
        for kind, headline in here.items():
            if isinstance(headline, dict) and kind not in (
                "total_tok_s",
                "measured_over_predicted",
            ):
                yield f"{name} {kind}: {json.dumps(headline)}"


def _cell(here: dict[str, Any], level: int) -> str:
    rate = here["total_tok_s"].get(level)
    if rate is None:
        return "–"
    ratio = here.get("measured_over_predicted", {}).get(level)
    return f"{rate:,.0f}" + ("" if ratio is None else f" ({ratio:.2f} x)")


def _row(cells: Iterable[str]) -> str:
    first, *rest = cells
    return f"{first:>8}" + "".join(f"  {cell:>22}" for cell in rest)
