"""Throughput runs with their repetitions, and ratios between them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Run:
    """A run by its name. ``documents``: a throughput result of each repetition. ``num_gpus``: those
    that served it; 0: unknown."""

    name: str
    documents: Sequence[dict[str, Any]]
    num_gpus: int = 0

    @property
    def levels(self) -> list[int]:
        """The levels of any repetition, ascending."""
        found = (level for each in self.documents for level in each["results"]["levels"])
        return sorted({int(level["concurrency"]) for level in found})

    def values(self, level: int, key: str, share: str = "") -> list[float]:
        """A figure of a level in each repetition that has it. ``share``: which of a latency's."""
        values = []
        for document in self.documents:
            for found in document["results"]["levels"]:
                value = found.get(key) if found["concurrency"] == level else None
                if share and value is not None:
                    value = value.get(share)
                if value is not None:
                    values.append(float(value))
        return values

    def median(self, level: int, key: str, share: str = "") -> float | None:
        """The median of the repetitions; None if none has the figure."""
        values = self.values(level, key, share)
        return median(values) if values else None


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians, and the lowest and highest ratio of any two repetitions."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        if self.lowest == self.highest:
            return f"{self.median:.3f}"
        return f"{self.median:.3f} ({self.lowest:.3f}–{self.highest:.3f})"


def ratio(first: Sequence[float], values: Sequence[float]) -> Ratio | None:
    """The ratio of ``values`` to ``first``, each the same figure in all repetitions of a run. None
    if one has none, or the first may be 0."""
    if not first or not values or min(first) <= 0:
        return None
    return Ratio(median(values) / median(first), min(values) / max(first), max(values) / min(first))


def grouped(named: Sequence[tuple[str, dict[str, Any]]], gpus: Sequence[int] = ()) -> list[Run]:
    """The runs of results by name, in order; results of one name are repetitions. ``gpus``: how
    many served each run; without them the GPUs of the machine that recorded it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for name, document in named:
        found.setdefault(name, []).append(document)
    counts = list(gpus) or [
        len(documents[0]["environment"].get("gpus") or []) for documents in found.values()
    ]
    if len(counts) != len(found):
        raise ValueError(f"--gpus: {len(counts)} numbers for {len(found)} runs")
    return [
        Run(name, documents, count)
        for (name, documents), count in zip(found.items(), counts, strict=True)
    ]
