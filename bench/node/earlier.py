"""Earlier calls with the same ``--out-dir`` and ``--prefix``: what they took, and their files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import result_file
from bench.node.plan import Part, Starts, chosen


@dataclass(frozen=True)
class Earlier:
    """``parts``, by name, and ``started_s``, by stack, are as the summary has them. ``spent_s`` is
    what all calls took, and ``budget_s`` what the last one was given for all."""

    parts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    started_s: Mapping[str, float] = field(default_factory=dict)
    spent_s: float = 0.0
    budget_s: float = 0.0

    @classmethod
    def read(cls, summary: Path) -> "Earlier":
        """Read the summary of earlier calls; empty if there is none. Raises ValueError if the file
        is something else."""
        if not summary.exists():
            return cls()
        try:
            document = result_file.load(summary, "node")
            results = document["results"]
            return cls(
                {part["part"]: part for part in results["parts"]},
                results["started_s"],
                results["spent_s"],
                document["settings"]["budget_s"],
            )
        except (result_file.ResultFileBad, KeyError, TypeError) as error:
            raise _foreign(summary, "a summary of bench.node", error) from None

    def choose(self, to_do: Sequence[Part], budget_s: float, starts: Starts) -> list[Part]:
        """Select the parts of ``to_do`` that fit into the remaining budget. A part that was left
        out stays out until the budget is raised."""
        stays_out = [name for name, part in self.parts.items() if part["state"] == "left out"]
        if budget_s > self.budget_s:
            stays_out = []
        may = [part for part in to_do if part.name not in stays_out]
        return chosen(may, budget_s - self.spent_s, starts)


def require_own(files: Iterable[tuple[Part, Path]]) -> None:
    """Raise ValueError where a part would overwrite what is not its result."""
    for part, file in files:
        if file.exists():
            try:
                result_file.load(file, part.result_kind)
            except result_file.ResultFileBad as error:
                raise _foreign(file, f"a result of {part.name}", error) from None


def _foreign(file: Path, wanted: str, error: Exception) -> ValueError:
    return ValueError(
        f"{file} is not {wanted} and would be overwritten; give another --out-dir or --prefix "
        f"({error!r})"
    )
