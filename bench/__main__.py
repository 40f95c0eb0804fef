"""``python -m bench``: the CPU benchmark, against transformers on the same checkpoint.

Starts a whole stack, measures, and writes one JSON file with the figures, their targets, and
where and how they were made. Exit code: 0 all targets met, 1 one missed, 2 could not measure.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from bench import environment, reference, result_file, runs, stack
from bench.environment import ROOT
from bench.harness.client.required import RequestFailed


@dataclass(frozen=True)
class Target:
    """A target: ``value`` must be at least, or at most, ``bound``."""

    name: str
    value: float
    side: Literal["at least", "at most"]
    bound: float
    unit: str
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.side == "at least" else self.value <= self.bound

    @property
    def wanted(self) -> str:
        return f"{self.side} {self.bound:g} {self.unit}".strip()

    def json(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "target": self.wanted, "met": self.met}


def targets(results: dict[str, Any]) -> list[Target]:
    """The targets of the benchmark, with the results that they are compared with."""
    one, sixteen = results["one"], results["sixteen"]
    outside, streams, memory = results["outside_model"], results["streams"], results["memory"]
    grown = ", ".join(
        f"{name} {service['first_mib']:.0f} → {service['last_mib']:.0f} MiB"
        for name, service in memory["services"].items()
    )
    of_total = f"p95 {outside['p95_ms']:.1f} ms of {outside['total_p50_ms']:.1f} ms"
    pace = f"{streams['tokens_per_s']:.0f} tok/s, ITL p50 {streams['itl_p50_ms']:.1f} ms"
    each = f"{streams['new_tokens_each']} tokens each, temperature 0"
    at_once, flat = f"{sixteen['requests']} at once", 100 * memory["worst_growth_share"]
    lost, requests = f"lost of {streams['streams']} streams", memory["requests"]
    return [
        Target("one request at a time", one["ratio"], "at least", 1.0, "×", _against(one)),
        Target(at_once, sixteen["ratio"], "at least", 1.5, "×", _against(sixteen)),
        Target("outside the model, p50", outside["p50_ms"], "at most", 8.0, "ms", of_total),
        Target(lost, streams["lost"], "at most", 0, "", pace),
        Target(
            "streams unlike those alone", streams["different_from_alone"], "at most", 0, "", each
        ),
        Target(f"memory over {requests} requests", flat, "at most", 5.0, "%", grown),
    ]


def _against(result: dict[str, Any]) -> str:
    return (
        f"{result['baton_tokens_per_s']:.0f} tok/s, transformers "
        f"{result['transformers_tokens_per_s']:.0f} ({result['transformers_threads']} threads)"
    )


def show(found: Sequence[Target]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "measured", "target", "", "", box=None, pad_edge=False)
    for target in found:
        value, verdict = f"{target.value:.4g} {target.unit}", "pass" if target.met else "MISS"
        table.add_row(target.name, value, target.wanted, verdict, target.detail)
    Console(width=150).print(table)


def measure(model: Path, *, quick: bool) -> dict[str, Any]:
    """All figures, by name."""
    rounds = 2 if quick else 7
    some = runs.prompts(model, 16)
    with ExitStack() as opened:
        served = opened.enter_context(stack.running(model))
        results: dict[str, Any] = {}
        with ExitStack() as compared:
            references = {n: compared.enter_context(reference.running(model, n)) for n in (1, 2)}
            for name, part, together in (("one", some[:4], False), ("sixteen", some, True)):
                _say(f"{name}: tokens a second, in turns with transformers")
                results[name] = runs.throughput(
                    served, references, part,
                    together=together, num_tokens=128, num_rounds=rounds,
                )  # fmt: skip
        _say("time outside the model")
        results["outside_model"] = runs.outside_model(
            served, some[0], num_requests=50 if quick else 200
        )
        _say("64 streams, alone and together")
        results["streams"] = runs.streams(
            served, runs.prompts(model, 64, seed=1), num_tokens=32 if quick else 128
        )
        _say("memory over many requests")
        results["memory"] = runs.memory(
            served,
            runs.prompts(model, 64, seed=2),
            num_requests=1000 if quick else 2000,
            sample_every=100,
            warm_up=400,
        )
    return results


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder.")] = ROOT / "models" / "tiny",
    out: Annotated[Path, typer.Option(help="Where the result goes.")] = (
        ROOT / "bench" / "results" / "cpu.json"
    ),
    quick: Annotated[bool, typer.Option(help="A minute instead of several; noisier.")] = False,
) -> None:
    """Measure a stack on this machine's CPU against transformers and against its targets."""
    try:
        results = measure(model, quick=quick)
    except (stack.StackFailed, reference.ReferenceMissing, RequestFailed, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    found = targets(results)
    document = result_file.document(
        "cpu",
        environment=environment.describe(sys.argv[1:]) | {"model": model.name},
        settings={"quick": quick},
        results={"targets": [target.json() for target in found], **results},
        problems=[f"{target.name}: {target.value:.4g}" for target in found if not target.met],
    )
    result_file.save(out, document)
    show(found)
    raise typer.Exit(0 if document["ok"] else 1)


def _say(text: str) -> None:
    typer.echo(f"bench: {text}", err=True)


if __name__ == "__main__":
    typer.run(main)
