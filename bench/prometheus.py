"""The little of Prometheus' text format that the harness needs."""

from collections.abc import Sequence


def total(text: str, names: Sequence[str]) -> float | None:
    """The sum over all series of the first of ``names`` that is exposed; None without any.

    >>> total('a{x="1"} 2\\na{x="2"} 3\\nab 9\\n', ["zz", "a"])
    5.0
    """
    for name in names:
        values = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((name + " ", name + "{"))
        ]
        if values:
            return sum(values)
    return None
