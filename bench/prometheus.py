"""Reading Prometheus' text format."""

from collections.abc import Iterator, Sequence

from prometheus_client.parser import text_string_to_metric_families


def series(text: str, name: str) -> Iterator[tuple[dict[str, str], float]]:
    """(labels, value) of every series called ``name``; empty if the text has another format.

    >>> list(series('a{x="1",y="b"} 2\\na 3\\nab 9\\n', "a"))
    [({'x': '1', 'y': 'b'}, 2.0), ({}, 3.0)]
    """
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name:
                    yield sample.labels, sample.value
    except ValueError:
        return


def total(text: str, names: Sequence[str]) -> float | None:
    """The sum over all series of the first of ``names`` that is exposed; None if none is.

    >>> total('a{x="1"} 2\\na{x="2"} 3\\nab 9\\n', ["zz", "a"])
    5.0
    """
    for name in names:
        if values := [value for _, value in series(text, name)]:
            return sum(values)
    return None
