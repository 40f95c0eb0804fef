"""``python -m bench.drafts_service``: service with drafts at a given acceptance, through HTTP.

    python -m bench.dummy_checkpoint --out /tmp/full
    python -m bench.drafts_service --model /tmp/full --acceptances off,0.8 --agents 1,4,12 \\
        --state-slots 96 --out-dir bench/results --prefix h100- -- --device cuda --quantize fp8

For each acceptance, ``off`` for workers without drafts, it starts one colocated worker with random
weights. It measures two parts: *levels*, ``baton bench throughput``, and *agents*, ``baton bench
load --agents-shape deep``.

Each part has its own result file, PREFIX + acceptance + part, as the harness writes it. If the part
did not go well, an earlier good result is kept beside it, as ``NAME.earlier.json``. ``baton bench
report`` draws one part of several acceptances together.

A step with K drafts at acceptance p gives a sequence 1 + p + … + p^K tokens: 2.95 with three drafts
at 0.8, and 3.3 at 0.875.

Exit status: 0, 1 when a request failed or a part was not measured within ``--call-s``.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.commands import END_S, PLAIN_SAMPLING, CommandFailed, baton_bench
from bench.harness.agents.settings import SHAPES
from bench.harness.options import int_list
from bench.recording import show
from bench.setups import Setup
from bench.stack import Stack, StackFailed, started

OFF = "off"
START_S = 300.0
LEAST_S = 10.0
"""A part is not begun with less time left."""
SEED = "1"
"""Each acceptance is sent the same requests."""


@dataclass(frozen=True)
class Call:
    """One call of this command. ``loads``: the words of ``baton bench`` that measure each part.
    ``ends_at`` is of the monotonic clock."""

    model: Path
    up: Sequence[str]
    speculate: str
    num_state_slots: int
    loads: Mapping[str, Sequence[str]]
    out_dir: Path
    prefix: str
    ends_at: float

    @property
    def left_s(self) -> float:
        return self.ends_at - time.monotonic()

    def arguments(self, acceptance: str) -> list[str]:
        """Arguments of ``baton up``."""
        model = ["--model", str(self.model), "--load-format", "dummy"]
        drafts = ["--speculate", OFF]
        if acceptance != OFF:
            drafts = ["--speculate", self.speculate, "--draft-acceptance", acceptance]
        return [*Setup(0, 1).arguments(), *model, *drafts, *self.up]

    def file(self, acceptance: str, part: str) -> Path:
        return self.out_dir / f"{self.prefix}{acceptance}-{part}.json"

    def measure(self, served: Stack, acceptance: str, part: str) -> dict[str, Any]:
        """The result document of a part. Raises CommandFailed."""
        limit_s = self.left_s - END_S
        if limit_s < LEAST_S:
            raise CommandFailed(f"{part}: only {max(0.0, self.left_s):.0f} s are left")
        kind, *options = self.loads[part]
        return baton_bench(
            kind, "--tokenizer", str(self.model), "--seed", SEED, *options, *PLAIN_SAMPLING,
            "--time-limit-s", f"{limit_s:.0f}",
            url=served.url, out=self.file(acceptance, part), within_s=self.left_s,
        ).document  # fmt: skip


def problems_of(call: Call, acceptance: str) -> Iterator[str]:
    """Measure one acceptance, and yield what went wrong."""
    try:
        arguments, settings = call.arguments(acceptance), {"num_state_slots": call.num_state_slots}
        start_s = min(START_S, call.left_s)
        with started(*arguments, settings=settings, start_s=start_s) as served:
            for part in call.loads:
                document = call.measure(served, acceptance, part)
                for found in document["results"].get("levels", []):
                    print(f"{acceptance:>6} {part:6} {line(found)}", flush=True)
                stopped = [document["stopped"]] if document["stopped"] else []
                yield from (f"{part}: {each}" for each in [*stopped, *document["problems"]])
            served.stop()
    except (StackFailed, CommandFailed) as error:
        yield str(error)


def line(found: dict[str, Any]) -> str:
    """One level in words."""
    if not found.get("completed"):
        return f"{found['concurrency']:4} at once: no request was completed"
    ttft, tpot = found["ttft_ms"]["p50"], (found["tpot_ms"] or {}).get("p50")
    a_user = f"TPOT {tpot:.2f} ms, {1e3 / tpot:.1f} tok/s a user" if tpot else "one token each"
    cached = found.get("hit_rate")
    return (
        f"{found['concurrency']:4} at once: {found['total_tok_s']:7.0f} tok/s, "
        f"{found['output_tok_s']:6.0f} out, TTFT {ttft:.0f} ms, {a_user}"
    ) + ("" if cached is None else f", {cached:.1%} cached")


def main(
    model: Annotated[Path, typer.Option(help="Checkpoint folder; only its config is read.")],
    up: Annotated[list[str] | None, typer.Argument(help="For baton up, behind --.")] = None,
    acceptances: Annotated[str, typer.Option(help="off, or from 0 to 1; commas.")] = "off,0.8",
    speculate: Annotated[str, typer.Option(help="Drafts a step: auto, or 1 to 4.")] = "auto",
    parts: Annotated[str, typer.Option(help="Of levels, agents.")] = "levels,agents",
    levels: Annotated[str, typer.Option(help="Requests at once.")] = "1,2,4,8,16,32,64",
    rounds: Annotated[int, typer.Option(help="Times that a level is filled.")] = 2,
    input_len: int = 1024,
    output_len: int = 1024,
    agents: Annotated[str, typer.Option(help="Agents at once.")] = "1,4,16,32",
    turns: Annotated[int, typer.Option(help="Turns of an agent.")] = SHAPES["deep"].turns,
    cached: Annotated[int, typer.Option(help="Cached tokens of each agent's own.")] = (
        SHAPES["deep"].own_prefix
    ),
    shared: Annotated[int, typer.Option(help="Cached tokens that all agents share.")] = 0,
    new: Annotated[int, typer.Option(help="Tokens that a turn adds.")] = 6400,
    answer: Annotated[int, typer.Option(help="Tokens of an answer.")] = 400,
    state_slots: Annotated[
        int, typer.Option(help="Fewer leave more memory for deep contexts; 0: as many as fit.")
    ] = 0,
    out_dir: Annotated[Path, typer.Option(help="Where the results go.")] = Path("drafts-results"),
    prefix: Annotated[str, typer.Option(help="What their names begin with.")] = "",
    call_s: Annotated[float, typer.Option(help="Seconds for this call.")] = 3600.0,
) -> None:
    """Measure service with drafts that are accepted with given probabilities."""
    at_once = int_list("--levels", levels)
    loads = {
        "levels": [
            "throughput", "--levels", levels, "--rounds", str(rounds),
            "--requests", str(max(at_once) * rounds), "--input-len", str(input_len),
            "--output-len", str(output_len), "--spot-checks", "0",
        ],
        "agents": [
            "load", "--agents", agents, "--agents-shape", "deep", "--turns", str(turns),
            "--agents-own-prefix", str(cached), "--agents-shared-prefix", str(shared),
            "--agents-turn-len", str(new), "--output-len", str(answer),
        ],
    }  # fmt: skip
    if unknown := sorted(set(parts.split(",")) - set(loads)):
        raise typer.BadParameter(f"--parts: {unknown[0]!r} is none of {', '.join(loads)}")
    ends_at = time.monotonic() + call_s
    out_dir.mkdir(parents=True, exist_ok=True)
    wanted = {part: loads[part] for part in parts.split(",")}
    folder = out_dir.absolute()
    call = Call(model, up or (), speculate, state_slots, wanted, folder, prefix, ends_at)
    problems = [
        f"{acceptance}: {each}"
        for acceptance in acceptances.split(",")
        for each in problems_of(call, acceptance)
    ]
    show(problems)
    raise typer.Exit(bool(problems))


if __name__ == "__main__":
    typer.run(main)
