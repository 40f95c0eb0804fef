"""What the workers of each role do, and that nothing else asks for a worker's role."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from transport.wire.messages import Decode, Generate, Move, Prefill, Release, Role
from worker.capabilities import capabilities_of

ROOT = Path(__file__).resolve().parents[2]
ROLES = get_args(Role)


@pytest.mark.parametrize("role", ROLES)
def test_the_roles_differ_in_what_they_do(role: Role) -> None:
    can = capabilities_of(role)
    assert can.computes_prompts == (role != "decode")
    assert can.decodes == (role != "prefill")
    assert can.offers == (role == "prefill") == (Prefill in can.orders)
    assert can.pulls == (role == "decode")
    assert can.decodes == (Generate in can.orders), "decode workers stand in for prefill workers"
    assert can.decodes == (Move in can.orders) == (Decode in can.orders), "sequences move"
    assert Release in can.orders


def comparisons(path: Path) -> list[int]:
    """The lines of a file that compare something with a role's name."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Compare | ast.MatchValue)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant) and part.value in ROLES
    ]


def test_only_capabilities_asks_for_the_role() -> None:
    asking = [
        path.relative_to(ROOT).as_posix()
        for folder in ("worker", "prefill", "decode", "colocated")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if comparisons(path)
    ]
    assert asking == ["worker/capabilities.py"]
