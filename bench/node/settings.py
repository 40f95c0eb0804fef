"""What ``python -m bench.node`` was asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import environment, result_file
from bench.node.plan import Part, Served
from bench.node.sizes import Sizes
from bench.predict.tables import Table

UNLIMITED_S = 1e6


@dataclass(frozen=True)
class Settings:
    """``table`` is one GPU's, None where none of this machine's kind was measured; ``command`` are
    the arguments, for the result files; ``budget_s`` is for all calls; ``more`` arguments go to
    ``baton up``."""

    model: Path
    device: str
    load_format: str
    sizes: Sizes
    out_dir: Path
    prefix: str
    table: Table | None
    command: tuple[str, ...] = ()
    budget_s: float = UNLIMITED_S
    more: tuple[str, ...] = ()

    def file(self, part: Part) -> Path:
        return self.out_dir / f"{self.prefix}{part.name}.json"

    @property
    def summary_file(self) -> Path:
        return self.out_dir / f"{self.prefix}summary.json"

    def up(self, served: Served) -> list[str]:
        """Arguments of ``baton up``."""
        model = ["--model", str(self.model), "--load-format", self.load_format]
        return [*model, "--device", self.device, *served.arguments(), *self.more]

    def write(
        self, part: Part, settings: dict[str, Any], results: dict[str, Any], problems: list[str]
    ) -> None:
        document = result_file.document(
            f"node {part.kind}",
            environment=environment.describe(self.command, "bench.node"),
            server={"setup": part.served.setup.name, "mode": part.served.mode},
            settings=settings,
            results=results,
            problems=problems,
        )
        result_file.write(self.file(part), document)
