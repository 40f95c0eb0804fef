"""Plots of single GPUs and groups: decode steps by batch, weights, drafts and members; prefill."""

import json
from pathlib import Path
from typing import Any

from bench.harness.html.charts import Chart, Line
from bench.plot_frame import framed, measured, read


def decode_step(file: Path) -> str:
    """Milliseconds of a decode step over the batch, beside vLLM's and the floor: a step's bytes at
    the speed of a device copy. ``file``: a result of ``bench.step``, which has their ratios."""
    document = json.loads(file.read_text())
    batches = document["batches"]
    ratios = {"vLLM 0.25.1, offline": "times_vllm", "floor: reading the bytes": "times_floor"}
    lines = [Line("Baton", [(each["batch"], each["step_ms"]) for each in batches])]
    for name, ratio in ratios.items():
        points = [(each["batch"], each["step_ms"] / each[ratio]) for each in batches]
        lines.append(Line(name, points, quiet=True))
    ticks = [each["batch"] for each in batches]
    chart = Chart(lines, "sequences", "ms per decode step", x_ticks=ticks).svg()
    lengths = f"{document['input_len']:,} tokens in, {document['output_len']:,} out"
    notes = [
        f"No drafts, {lengths}, {measured({file.name: document})}",
        "vLLM: the same load and kind of GPU, its own CUDA graphs; raw output not kept",
    ]
    return framed(chart, "A decode step of one H200, Qwen3.5-35B-A3B, BF16, random weights", notes)


def spread_step(file: Path) -> str:
    """Milliseconds of local steps and of steps that two members compute together, over the
    sequences of both, from a result of ``bench.spread_step --table``."""
    document = json.loads(file.read_text())
    lines = [
        Line(
            name,
            [(2 * each, ms) for members, each, drafts, ms in document["steps"]
             if (members, drafts) == (of, 0)],
        )
        for name, of in (("two local steps, at the same time", 1), ("one spread step", 2))
    ]  # fmt: skip
    ticks = [x for x, _ in lines[0].points]
    chart = Chart(lines, "sequences of both GPUs together", "ms per step", x_ticks=ticks).svg()
    notes = [f"1,024 tokens of context, no drafts, {measured({file.name: document})}"]
    return framed(chart, "A decode step of two H200s, Qwen3.5-35B-A3B, BF16, random weights", notes)


def quantised_steps(files: dict[str, Path]) -> str:
    """Milliseconds of a decode step over the batch: results of ``bench.step`` by the names of their
    lines."""
    documents = read(files.values())
    lines = [
        Line(name, [(each["batch"], each["step_ms"]) for each in documents[file.name]["batches"]])
        for name, file in files.items()
    ]
    ticks = sorted({x for line in lines for x, _ in line.points})
    chart = Chart(lines, "sequences", "ms per decode step", x_ticks=ticks).svg()
    one = next(iter(documents.values()))
    lengths = f"{one['input_len']:,} tokens in, {one['output_len']:,} out"
    notes = [f"No drafts, {lengths}, {measured(documents)}"]
    title = "A decode step by the format of weights, Qwen3.5-35B-A3B, random weights"
    return framed(chart, title, notes)


def quality_and_speed(quality: Path, gpus: dict[str, dict[str, Path]], batch: int) -> str:
    """Tokens per second of a batch over the divergence of the predictions: a result of
    ``bench.weights_quality``, and of each GPU results of ``bench.step`` by the value of
    ``--quantize``."""
    files = [file for steps in gpus.values() for file in steps.values()]
    found, steps = read([quality])[quality.name]["results"], read(files)
    lines = []
    for gpu, by_format in gpus.items():
        points = [
            (1e4 * found[name]["kl_nats_problems"], _tokens_per_s(steps[file.name], batch))
            for name, file in by_format.items()
        ]
        labels = ["as stored, BF16" if name == "none" else name for name in by_format]
        lines.append(Line(gpu, points, labels=labels))
    chart = Chart(lines, "mean KL divergence, 0.0001 nats a token", "tokens per second").svg()
    notes = [
        f"Speed: Qwen3.5-35B-A3B, random weights, {batch} sequences, {measured(steps)}",
        f"Divergence: the bundled model reading held-out problems on a CPU, {quality.name}",
    ]
    return framed(chart, "Speed and quality by --quantize", notes)


def _tokens_per_s(document: dict[str, Any], batch: int) -> float:
    (step_ms,) = (each["step_ms"] for each in document["batches"] if each["batch"] == batch)
    return 1e3 * batch / float(step_ms)


def drafts(file: Path, acceptance: float) -> str:
    """Tokens per second with 1, 2 and 3 drafts over those without drafts, by the batch, from a
    result of ``bench.speculation`` (retired)."""
    document = json.loads(file.read_text())
    steps = [each for each in document["steps"] if each["acceptance"] == acceptance]
    numbers = sorted({each["drafts"] for each in steps if each["drafts"] in ("1", "2", "3")})
    lines = [
        Line(
            f"K = {number}",
            [(each["batch"], each["times_off"]) for each in steps if each["drafts"] == number],
        )
        for number in numbers
    ]
    ticks = [x for x, _ in lines[0].points]
    chart = Chart(lines, "sequences", "times the tokens/s without drafts", x_ticks=ticks).svg()
    notes = [
        f"Acceptance of {acceptance} given, not measured; {document['input_len']:,} tokens in, one "
        f"H200, BF16, {measured({file.name: document})}"
    ]
    return framed(chart, "Drafts of K tokens, Qwen3.5-35B-A3B, random weights", notes)


def first_tokens(files: dict[str, Path]) -> str:
    """Milliseconds from the launch of one prompt to its first token, over its length: results of
    ``bench.step`` by the names of their lines."""
    documents = read(files.values())
    lines = []
    for name, file in files.items():
        found = documents[file.name]["single_prompts_ms"]
        points = [(int(tokens), ms) for tokens, ms in found.items()]
        lines.append(Line(name, [(tokens, ms) for tokens, ms in points if _whole_power(tokens)]))
    ticks = [x for x, _ in lines[0].points]
    chart = Chart(lines, "tokens of the prompt", "ms", x_ticks=ticks, log_y=True).svg()
    notes = [f"One H200, BF16, {measured(documents)}"]
    title = "One prompt from launch to first token, Qwen3.5-35B-A3B, random weights"
    return framed(chart, title, notes)


def _whole_power(number: int) -> bool:
    """True for powers of two: other lengths would crowd the axis."""
    return number.bit_count() == 1
