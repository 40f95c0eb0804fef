"""``python -m bench.predict_pools``: what a set-up of pools should give, from one GPU's figures.

    python -m bench.predict_pools --setup both:4 --setup split:1+3 --setup split:2+6 --setup both:8

From ``bench.step``'s result: the decode step by batch size, linear between the measured ones, and
the prefill rate by tokens at once. For c requests at once, spread evenly, a GPU with n of them

    takes   E = TTFT + (out - 1) * step(n)     for each of its n, which begin together
    gives   n * (in + out) / E                 tokens a second

and the set-up the sum over its decoding GPUs; at the last level, where all requests begin at once,
all their tokens over the longest E. TTFT is ``OVERHEAD_S`` and the prefill of what begins together:
the prompts of one decoding GPU, or a Pth of all at the last level with P prefill workers. Nothing
else is modelled: no tails of a run, no queueing. Measured results beside it (``--measured``) say
how far that carries.
"""

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.figures.score import WEIGHTS, score
from bench.interference import setup_counts

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
    setup: Annotated[list[str], typer.Option(help="split:P+D or both:N; several times.")],
    step: Annotated[Path, typer.Option(help="Result of bench.step.")] = (
        ROOT / "bench/results/h200-step.json"
    ),
    measured: Annotated[
        list[Path] | None, typer.Option(help="Result of baton bench throughput, one a set-up.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Also write it there.")] = None,
) -> None:
    """A line for each set-up: tokens a second at each level, and the weighted score."""
    try:
        gpu, setups = Gpu.read(step), {each: Setup.parse(each) for each in setup}
        results = [json.loads(path.read_text()) for path in measured or ()]
    except (ValueError, KeyError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    found: dict[str, Any] = {}
    for i, (name, pools) in enumerate(setups.items()):
        predicted = {level: total_tok_s(gpu, pools, level) for level in WEIGHTS}
        found[name] = {"total_tok_s": _rounded(predicted), "score": round(score(predicted))}
        if i < len(results):
            levels = results[i]["results"]["levels"]
            real = {level["concurrency"]: level["total_tok_s"] for level in levels}
            found[name]["measured_over_predicted"] = {
                n: round(real[n] / predicted[n], 3) for n in predicted if n in real
            }
    text = json.dumps({"kind": "prediction", "from": step.name, "setups": found}, indent=1)
    if out is not None:
        out.write_text(text + "\n")
    typer.echo(text)


def _rounded(values: dict[int, float]) -> dict[int, int]:
    return {level: round(value) for level, value in values.items()}


if __name__ == "__main__":
    typer.run(main)
