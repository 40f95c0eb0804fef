"""Plots of whole services: turns of conversations, pools, requests open at once, faults."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness.html.charts import Line
from bench.plot_frame import bars, framed, measured, plotted, read

KINDS = {
    "a worker killed": ("worker killed",),
    "a worker drained or slowed": ("worker drained", "worker slowed"),
    "a worker stopped": ("worker stopped",),
    "coordinator stopped": ("coordinator stopped",),
    "coordinator killed or restarted": ("coordinator killed", "coordinator restarted"),
    "Redis, all faults": ("redis",),
    "clients, bodies, connections": (
        "clients", "bodies", "bytes", "idle connections", "scrapes", "agents"
    ),
    "worker channel, no descriptors": ("stranger", "name taken", "frames", "descriptors"),
}  # fmt: skip
"""Kinds of faults of ``tests.soak``: words that the names of its faults have."""


def agent_turns(files: dict[str, Path], prefixes: Sequence[int]) -> str:
    """TTFT of one agent over its turns. ``files``: results of ``baton bench load --agents`` in one
    document, by the name of their lines; ``prefixes``: tokens that all turns begin with."""
    documents = read(files.values())
    lines = []
    for colour, prefix in enumerate(prefixes):
        for number, (name, file) in enumerate(files.items()):
            run = documents[file.name]["results"][f"1 agents, {prefix} tokens shared"]["results"]
            points = [(turn["turn"], turn["ttft_ms"]["p50"]) for turn in run["by_turn"]]
            label = f"{prefix:,} tokens shared, {name}"
            lines.append(Line(label, points, quiet=number > 0, colour=colour))
    gpu = next(iter(documents.values()))["environment"]["gpus"][0].partition(",")[0]
    return plotted(
        lines, "turn", "TTFT, ms",
        "Time to the first token of an agent that adds 256 tokens a turn",
        f"Qwen3.5-35B-A3B, BF16, random weights, {gpu}", documents, log_y=True, x_ticks=(),
    )  # fmt: skip


def predicted_pools(files: dict[str, Path]) -> str:
    """Requests per second within the targets, with pools that follow the load and with the best
    fixed set-up: results of ``baton plan --auto`` by the names of their loads."""
    documents = read(files.values())
    rates: dict[str, list[float]] = {"the best fixed pools": [], "pools that follow the load": []}
    for file in files.values():
        by_setup = documents[file.name]["results"].items()
        found = [(setup, each["goodput"]["requests_per_s"]) for setup, each in by_setup]
        for name, of_auto in zip(rates, (False, True), strict=True):
            chosen = [rate for setup, rate in found if setup.startswith("auto") == of_auto]
            rates[name].append(max(chosen))
    x_label = "requests per second within the targets, 90 % of them"
    chart = bars(list(files), rates, x_label, "%.1f")
    notes = [
        "Predicted by simulation of H200s, not measured. Targets of TTFT and TPOT: Azure 0.5 s, "
        "15 ms; Mooncake 5 s, 15 ms; shift (8,192 to 32, then 256 to 1,024 tokens) 2 s, 20 ms",
        measured(documents),
    ]
    title = "Pools that follow the load beside the best fixed ones, Qwen3.5-35B-A3B"
    return framed(chart, title, notes)


def scale(file: Path) -> str:
    """Memory of the coordinator over the requests that are open at once, from a result of
    ``baton bench scale``."""
    documents = read([file])
    found = documents[file.name]
    levels, settings = found["results"]["by_level"], found["settings"]
    points = [(each["level"], each["coordinator"]["memory_mib"]["most"]) for each in levels]
    low, high = settings["input_len"]
    note = f"{low} to {high} tokens in, {settings['output_len']} out, two CPU cores"
    line, title = Line("most memory", points), "Memory of the coordinator"
    return plotted([line], "requests open at once", "MiB", title, note, documents)


def faults(file: Path) -> str:
    """The longest silence of a stream and the longest time until a stack was whole again, for each
    kind of fault in a result of ``tests.soak``. ValueError if a fault belongs to no kind."""
    document = json.loads(file.read_text())
    rounds: dict[str, list[Any]] = defaultdict(list)
    for each in document["results"]["rounds"]:
        rounds[_kind(each["fault"])].append(each)
    kinds = [kind for kind in KINDS if kind in rounds]
    shown = {"silence of a stream": "silence_max_s", "until the stack was whole": "whole_s"}
    longest = {
        name: [max(each[key] or 0.0 for each in rounds[kind]) for kind in kinds]
        for name, key in shown.items()
    }
    chart = bars(kinds, longest, "seconds, longest of all faults of a kind", "%.2f")
    results = document["results"]
    notes = [
        f"{results['faults']} random faults, {results['requests']:,} requests, two CPU cores; "
        f"whole includes a fixed 2 s; {measured({file.name: document})}"
    ]
    title = "Random faults under load: silence of streams, and recovery of the stack"
    return framed(chart, title, notes)


def _kind(fault: str) -> str:
    for kind, words in KINDS.items():
        if any(word in fault for word in words):
            return kind
    raise ValueError(f"fault: {fault!r} belongs to no kind")
