"""``python -m bench.docs_plots``: draws the plots of README and docs from committed result files.

    python -m bench.docs_plots --out docs

writes throughput.svg, step.svg, quantised-step.svg, quality-speed.svg, drafts-speed.svg,
first-token.svg, spread-step.svg, interference.svg, pools.svg, predicted-pools.svg, agent-turns.svg,
faults.svg and scale.svg. Each says on the picture what was measured, when and on what. Colours
follow the reader's light or dark setting (``prefers-color-scheme``).
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from bench.harness.html.charts import COLOURS, Line
from bench.plot_frame import bars, drawn, framed, measured, plotted, read
from bench.plots_of_services import agent_turns, faults, predicted_pools, scale
from bench.plots_of_steps import (
    decode_step,
    drafts,
    first_tokens,
    quality_and_speed,
    quantised_steps,
    spread_step,
)

BENCH = Path(__file__).parent
RESULTS = BENCH / "results"


def throughput(baton: dict[str, Path], others: Sequence[str], references: Path) -> str:
    """Tokens per second over requests at once: result files of ``baton bench throughput`` by the
    name of their line, and ``others`` by their names in ``references``."""
    lines, notes, documents = [], [], read(baton.values())
    for name, file in baton.items():
        levels = documents[file.name]["results"]["levels"]
        points = [(level["concurrency"], level["total_tok_s"]) for level in levels]
        lines.append(Line(name, points))
    known = {entry["name"]: entry for entry in json.loads(references.read_text())["references"]}
    for name in others:
        points = [(int(level), rate) for level, rate in known[name]["total_tok_s"].items()]
        lines.append(Line(name, points, quiet=True))
        notes.append(
            f"{name}: {known[name]['hardware']}, {known[name]['source']}; recorded "
            f"{known[name]['recorded']} in {references.name}, raw output not kept"
        )
    settings = next(iter(documents.values()))["settings"]
    lengths = f"{settings['input_len']:,} tokens in, {settings['output_len']:,} out"
    return plotted(
        lines, "requests at once", "prompt + output tokens/s",
        f"Qwen3.5-35B-A3B, BF16, random weights, {lengths}, 4 × H200",
        "Baton: through HTTP, no drafts", documents, *notes, log_y=True,
    )  # fmt: skip


PERCENTILES = {"p50": "itl_p50_ms", "p99": "itl_p99_ms", "max": "itl_max_ms"}
PHASES = {"quiet": "alone", "disturbed": "beside arriving prompts"}


def interference(files: Sequence[Path]) -> str:
    """Percentiles of the gaps between tokens, from results of ``baton bench interference``: for
    each set-up and percentile a bar for the streams alone, and one beside arriving prompts."""
    documents = read(files)
    setups: dict[str, Any] = {}
    for document in documents.values():
        for name, found in document["results"].items():
            setups[name.replace("both:", "colocated:")] = found  # its name in earlier files
    rows = [(setup, share) for setup in setups for share in PERCENTILES]
    gaps = {
        meaning: [setups[setup][phase][PERCENTILES[share]] for setup, share in rows]
        for phase, meaning in PHASES.items()
    }
    names = [f"{setup}  {share}" for setup, share in rows]
    chart = bars(names, gaps, "ms between two tokens of a stream", "%.1f")
    first = next(iter(documents.values()))
    load = first.get("settings") or first["load"]  # earlier files have it under load
    arriving = f"prompts of {load['arrival_prompt']:,} tokens every {load['every_s']} s"
    notes = [f"{load['num_streams']} streams, {arriving}, {measured(documents)}"]
    title = "Gaps between tokens, Qwen3.5-35B-A3B, BF16, random weights, 4 × H200"
    return framed(chart, title, notes)


def pools(file: Path, auto: str, fixed: str, load: str) -> str:
    """What the two workers of a stack whose pools follow the load decode over time, as bands above
    the TTFT of this stack and of a fixed one. ``file``: a result of
    ``bench.pools_service`` (retired)."""
    document = json.loads(file.read_text())
    found = {name: document["results"][name][load] for name in (auto, fixed)}
    looks = found[auto]["pools"]
    # It was watched from before the first request on.
    began = next((look["second"] for look in looks if any(look["running"])), 0.0)
    totals = [sum(look["running"][i] for look in looks) for i in (0, 1)]
    workers = sorted((0, 1), key=lambda i: -totals[i])

    def draw(figure: Any) -> None:
        above, below = figure.subplots(2, 1, sharex=True)
        above.stackplot(
            [look["second"] - began for look in looks],
            *([look["running"][i] for look in looks] for i in workers),
            labels=("at the decode worker", "kept at the prefill worker"),
            colors=COLOURS[:2],
        )
        above.set_ylabel("sequences")
        above.legend(loc="upper left")
        for (name, each), colour in zip(found.items(), COLOURS[2:4], strict=True):
            seconds = [one for one in each["timeline"] if one["ttft_p50_ms"] is not None]
            points = [one["second"] for one in seconds], [one["ttft_p50_ms"] for one in seconds]
            below.plot(*points, color=colour, label=name)
        below.set_ylabel("TTFT, ms")
        below.set_xlabel("seconds")
        below.set_xlim(left=0)
        below.legend(loc="upper right")

    title = "Two workers whose pools follow the load, beside two colocated ones"
    notes = [
        "50 s of 8,192 tokens in and 32 out, then 12 s of 256 in and 1,024 out; 6 requests a "
        "second; TTFT: median of each second",
        f"{document['environment']['gpus'][0].partition(',')[0]} × 2, FP8, random weights, "
        f"{measured({file.name: document})}",
    ]
    return framed(drawn(draw), title, notes)


def main(
    out: Annotated[Path, typer.Option(help="The folder for the SVG files.")] = Path("docs"),
) -> None:
    """Draw all plots."""
    baton = {
        "Baton, 4 × colocated": RESULTS / "h200-both-4.json",
        "Baton, 1 prefill + 3 decode": RESULTS / "h200-split-1-3.json",
    }
    others = ("vLLM 0.25.1, TP4", "vLLM 0.25.1, 4 x TP1")
    plots = {
        "throughput.svg": throughput(baton, others, BENCH / "references.json"),
        "step.svg": decode_step(RESULTS / "h200-step.json"),
        "quantised-step.svg": quantised_steps(
            {
                "BF16, H200": RESULTS / "h200-step-256-2.json",
                "FP8, H200": RESULTS / "h200-step-fp8-256-3.json",
                "FP8, H100": RESULTS / "h100-step-fp8-256.json",
                "NVFP4, H100": RESULTS / "h100-step-nvfp4-256.json",
            }
        ),
        "quality-speed.svg": quality_and_speed(
            RESULTS / "weights-quality.json",
            {
                "H200": {
                    "none": RESULTS / "h200-step-256-2.json",
                    "fp8": RESULTS / "h200-step-fp8-256-3.json",
                },
                "H100": {
                    "fp8": RESULTS / "h100-step-fp8-256.json",
                    "nvfp4": RESULTS / "h100-step-nvfp4-256.json",
                },
            },
            batch=64,
        ),
        "drafts-speed.svg": drafts(RESULTS / "h200-drafts.json", acceptance=0.8),
        "first-token.svg": first_tokens(
            {
                "with CUDA graphs": RESULTS / "h200-step.json",
                "launched by the host": RESULTS / "h200-prompts-launched.json",
            }
        ),
        "spread-step.svg": spread_step(RESULTS / "h200x2-spread-table.json"),
        "interference.svg": interference(
            [RESULTS / f"h200-{name}-interference.json" for name in ("split-1-3", "both-4")]
        ),
        "pools.svg": pools(
            RESULTS / "h100x2-pools-shift.json", "auto:1+1", "colocated:2", "shift:6"
        ),
        "predicted-pools.svg": predicted_pools(
            {
                f"{load}, {gpus} GPUs": RESULTS / f"plan-changes-{name}.json"
                for load, gpus, name in (
                    ("Azure, conversation", 2, "azure-2"),
                    ("Azure, conversation", 8, "azure"),
                    ("Azure, code", 8, "azure-code"),
                    ("Mooncake, conversation", 2, "mooncake-2"),
                    ("Mooncake, conversation", 8, "mooncake"),
                    ("shift", 2, "shift-2"),
                    ("shift", 4, "shift-4"),
                    ("shift", 8, "shift-8"),
                )
            }
        ),
        "agent-turns.svg": agent_turns(
            {
                "prefix cache": RESULTS / "h200-prefix.json",
                "no prefix cache": RESULTS / "h200-prefix-off.json",
            },
            (8192, 65536),
        ),
        "faults.svg": faults(RESULTS / "cpu-soak-3.json"),
        "scale.svg": scale(RESULTS / "cpu-scale.json"),
    }
    for name, svg in plots.items():
        (out / name).write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
