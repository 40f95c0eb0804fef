"""How a run ended, to be read before its figures: what failed, and whether its sums were right."""

from html import escape
from typing import Any


def verdict(found: dict[str, Any]) -> str:
    """Green only if nothing is wrong, the answers to spot checks included."""
    said = [f"stopped: {found['stopped']}"] if found["stopped"] else []
    said += found["problems"]
    wrong, num_checks = _spot_checks(found)
    if wrong:
        said = said or ["complete, and no request failed; but:"]
        said.append(
            f"spot checks: {wrong} of {num_checks} sums were answered wrong. Random weights cannot "
            "add; of trained ones that says that the text may be wrong"
        )
    if said:
        return "".join(f"<p class='state bad'>{escape(each)}</p>" for each in said)
    right = f"; spot checks: {num_checks} of {num_checks} sums right" if num_checks else ""
    return f"<p class='state good'>complete, without a failure{right}</p>"


def _spot_checks(found: dict[str, Any]) -> tuple[int, int]:
    """How many were wrong, of how many."""
    levels = (found["results"] or {}).get("levels") or []
    passed = [check["passed"] for level in levels for check in level.get("spot_checks") or []]
    return passed.count(False), len(passed)
