"""How much a test tries: all by `make test-all`, and less by `make test`.

Numbers of random examples are for tests whose examples take a tenth of a second and more, such as
simulated clusters. Combinations are for tests whose parameters do not depend on each other: an
ordinary run has each value of each parameter at least once.
"""

import os
from collections.abc import Sequence
from typing import TypeVar

Combination = TypeVar("Combination", bound=tuple[object, ...])
ALL = bool(os.environ.get("BATON_TEST_ALL"))


def examples(number: int) -> int:
    """``number`` for ``make test-all``, a third of it otherwise, and at least four."""
    return number if ALL else max(4, number // 3)


def combinations(
    every: Sequence[Combination], ordinary: Sequence[Combination]
) -> Sequence[Combination]:
    """``every`` combination of parameters for ``make test-all``, and ``ordinary`` ones otherwise.

    Raises:
        ValueError: ``ordinary`` has a combination that is not one of ``every``, or no combination
            with one of the values.
    """
    if extra := set(ordinary) - set(every):
        raise ValueError(f"not among all combinations: {sorted(map(str, extra))}")
    for place in range(len(every[0])):
        if missing := {each[place] for each in every} - {each[place] for each in ordinary}:
            raise ValueError(f"parameter {place} is never {sorted(map(str, missing))}")
    return every if ALL else ordinary
