"""``python -m bench.predict_pools``: what a set-up of pools should give, from one GPU's figures.

    python -m bench.predict_pools --setup split:2+6 --setup colocated:8 --setup both:2 \\
        --measured both:2=bench/results/h200-both-2.json

From ``bench.step``'s result: the decode step by batch size, linear between the measured ones, and
the prefill rate by tokens at once. For c requests at once, spread evenly, a GPU with n of them

    takes   E = TTFT + (out - 1) * step(n)     for each of its n, which begin together
    gives   n * (in + out) / E                 tokens a second

and the set-up the sum over its decoding GPUs; at the last level, where all requests begin at once,
all their tokens over the longest E. TTFT is ``OVERHEAD_S`` and the prefill of what begins together:
the prompts of one decoding GPU, or a Pth of all at the last level with P prefill workers. Nothing
else is modelled: no tails of a run, no queueing. A set-up's measured result beside it
(``--measured``) shows how accurate that is.
"""

import json
import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench import environment
from bench.harness.score import WEIGHTS, weighted
from bench.interference import setup_counts
from bench.result_file import ResultFileBad, load

ROOT = Path(__file__).resolve().parent.parent
INPUT_LEN = OUTPUT_LEN = 1024
OVERHEAD_S = 0.015
"""From the client to the prefill worker and back, as measured at level 1."""
Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Gpu:
    """``step_s`` over sequences and ``prefill_tok_s`` over prompts at once: measured points."""

    step_s: Curve
    prefill_tok_s: Curve

    @classmethod
    def read(cls, result: Path) -> "Gpu":
        rows = json.loads(result.read_text())["batches"]
        return cls(
            [(row["batch"], row["step_ms"] / 1e3) for row in rows],
            [(row["batch"], row["prefill_tokens_per_s"]) for row in rows],
        )

    def prefill_s(self, num_prompts: float) -> float:
        return num_prompts * INPUT_LEN / between(self.prefill_tok_s, num_prompts)


@dataclass(frozen=True)
class Setup:
    """``num_prefill`` 0: every GPU does both."""

    num_prefill: int
    num_decode: int

    @classmethod
    def parse(cls, text: str) -> "Setup":
        """Raises ValueError."""
        num_prefill, num_decode = setup_counts(text)
        if num_prefill == 0 or num_decode == 0:
            raise ValueError(f"--setup: {text!r} has a pool without workers")
        return cls(num_prefill or 0, num_decode)

    def read(self, path: Path) -> dict[int, float]:
        """tok/s by level, as ``baton bench throughput`` measured them. Raises ResultFileBad;
        ValueError where the machine had too few GPUs."""
        result = load(path, "throughput")
        gpus, wanted = result["environment"]["gpus"], self.num_prefill + self.num_decode
        if gpus and len(gpus) < wanted:
            raise ValueError(f"{path.name} was measured with {len(gpus)} of {wanted} GPUs")
        levels = result["results"]["levels"]
        return {level["concurrency"]: level["total_tok_s"] for level in levels}


def between(curve: Curve, x: float) -> float:
    """Linear between the points of ``curve``; its ends' values beyond them."""
    xs = [at for at, _ in curve]
    right = bisect_left(xs, x)
    if right == 0 or right == len(xs):
        return curve[min(right, len(xs) - 1)][1]
    (x0, y0), (x1, y1) = curve[right - 1], curve[right]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def total_tok_s(gpu: Gpu, setup: Setup, at_once: int) -> float:
    """Prompt and output tokens a second with ``at_once`` requests."""
    each, rest = divmod(at_once, setup.num_decode)
    sizes = [each + (i < rest) for i in range(setup.num_decode)]
    all_begin = at_once == max(WEIGHTS)

    def seconds(size: int) -> float:
        together = at_once / setup.num_prefill if all_begin and setup.num_prefill else size
        ttft = OVERHEAD_S + gpu.prefill_s(together)
        return ttft + (OUTPUT_LEN - 1) * between(gpu.step_s, size)

    if all_begin:
        return at_once * (INPUT_LEN + OUTPUT_LEN) / max(seconds(n) for n in sizes)
    return sum(n * (INPUT_LEN + OUTPUT_LEN) / seconds(n) for n in sizes if n)


def main(
    setup: Annotated[list[str], typer.Option(help="split:P+D or colocated:N; several times.")],
    step: Annotated[Path, typer.Option(help="Result of bench.step.")] = (
        ROOT / "bench/results/h200-step.json"
    ),
    measured: Annotated[
        list[str] | None, typer.Option(help="SETUP=FILE, a result of baton bench throughput.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write it there.")] = None,
) -> None:
    """A line for each set-up: tokens a second at each level, and the weighted score."""
    found: dict[str, Any] = {}
    try:
        gpu, setups = Gpu.read(step), {each: Setup.parse(each) for each in setup}
        for name, pools in setups.items():
            predicted = {level: total_tok_s(gpu, pools, level) for level in WEIGHTS}
            rounded = {level: round(rate) for level, rate in predicted.items()}
            found[name] = {"total_tok_s": rounded, "score": round(weighted(predicted))}
        for name, file in _files(measured or (), setups).items():
            real, predicted = setups[name].read(file), found[name]["total_tok_s"]
            found[name]["measured"] = file.name
            found[name]["measured_over_predicted"] = {
                n: round(real[n] / total_tok_s(gpu, setups[name], n), 3)
                for n in predicted
                if n in real
            }
    except (ValueError, KeyError, OSError, ResultFileBad) as error:
        raise typer.BadParameter(str(error)) from None
    document = {
        "kind": "prediction",
        "environment": environment.describe(sys.argv[1:], "bench.predict_pools"),
        "from": step.name,
        "setups": found,
    }
    text = json.dumps(document, indent=1)
    if out is not None:
        out.write_text(text + "\n")
    typer.echo(text)


def _files(given: Iterable[str], setups: Mapping[str, Setup]) -> dict[str, Path]:
    """By set-up. Raises ValueError."""
    found: dict[str, Path] = {}
    for each in given:
        name, is_pair, file = each.partition("=")
        if not is_pair or name not in setups:
            raise ValueError(f"--measured: {each!r} is not SETUP=FILE with one of the set-ups")
        if name in found:
            raise ValueError(f"--measured: two results of {name}")
        found[name] = Path(file)
    return found


if __name__ == "__main__":
    typer.run(main)
