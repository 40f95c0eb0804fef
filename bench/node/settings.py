"""What ``python -m bench.node`` was asked for, and the result files of its parts."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import environment, result_file
from bench.node.plan import Part, Served
from bench.node.sizes import Sizes


@dataclass(frozen=True)
class Settings:
    """What all parts share. ``more`` arguments go to ``baton up``."""

    model: Path
    device: str
    load_format: str
    sizes: Sizes
    out_dir: Path
    prefix: str
    more: tuple[str, ...] = ()

    def file(self, part: Part) -> Path:
        return self.out_dir / f"{self.prefix}{part.name}.json"

    def up(self, served: Served) -> list[str]:
        """Arguments of ``baton up``."""
        model = ["--model", str(self.model), "--load-format", self.load_format]
        return [*model, "--device", self.device, *served.arguments(), *self.more]

    def write(
        self, part: Part, settings: dict[str, Any], results: dict[str, Any], problems: list[str]
    ) -> list[str]:
        """Write the result file of a part. Returns ``problems``."""
        document = result_file.document(
            f"node {part.kind}",
            environment=environment.describe(sys.argv[1:], "bench.node"),
            server={"setup": part.served.setup.name, "mode": part.served.mode},
            settings=settings,
            results=results,
            problems=problems,
        )
        result_file.write(self.file(part), document)
        return problems
