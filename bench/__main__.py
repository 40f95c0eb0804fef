"""``python -m bench``: the CPU benchmark, against transformers on the same checkpoint.

Starts a whole stack, measures, and writes one JSON file with the figures, their targets, and
where and how they were made. Exit code: 0 all targets met, 1 one missed, 2 could not measure.
"""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import environment, reference, report, runs, stack
from bench.harness.client.required import RequestFailed
from bench.prompts import prompts
from bench.result_file import rounded

ROOT = Path(__file__).resolve().parent.parent


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
    found = report.targets(results)
    document = {
        "environment": environment.describe(sys.argv[1:]) | {"model": model.name},
        "targets": [target.json() for target in found],
        "results": results,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rounded(document), indent=1, ensure_ascii=False) + "\n")
    report.show(found)
    raise typer.Exit(not all(target.met for target in found))


def measure(model: Path, *, quick: bool) -> dict[str, Any]:
    """All figures, by name."""
    rounds = 2 if quick else 7
    some = prompts(model, 16)
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
            served, prompts(model, 64, seed=1), num_tokens=32 if quick else 128
        )
        _say("memory over many requests")
        results["memory"] = runs.memory(
            served,
            prompts(model, 64, seed=2),
            num_requests=1000 if quick else 2000,
            sample_every=100,
            warm_up=400,
        )
    return results


def _say(text: str) -> None:
    typer.echo(f"bench: {text}", err=True)


if __name__ == "__main__":
    typer.run(main)
