"""The little of Prometheus' text format that the harness needs."""

import re
from collections.abc import Iterator, Sequence

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def series(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """(labels, value) of every series called ``name``.

    >>> list(series('a{x="1",y="b"} 2\\na 3\\nab 9\\n', "a"))
    [({'x': '1', 'y': 'b'}, 2.0), ({}, 3.0)]
    """
    for line in text.splitlines():
        if line.startswith((name + " ", name + "{")):
            labels, _, value = line.removeprefix(name).rpartition(" ")
            yield dict(_LABEL.findall(labels)), float(value)


def total(text: str, names: Sequence[str]) -> float | None:
    """The sum over all series of the first of ``names`` that is exposed; None without any.

    >>> total('a{x="1"} 2\\na{x="2"} 3\\nab 9\\n', ["zz", "a"])
    5.0
    """
    for name in names:
        if values := [value for _, value in series(text, name)]:
            return sum(values)
    return None
