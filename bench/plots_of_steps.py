"""Plots of single GPUs and groups: decode steps by batch, weights, drafts and members; prefill."""

from pathlib import Path
from typing import Any

from bench.harness.html.charts import Line
from bench.plot_frame import plotted, read


def decode_step(file: Path) -> str:
    """Milliseconds of a decode step over the batch, beside vLLM's and the floor: a step's bytes at
    the speed of a device copy. ``file``: a result of ``bench.step``, which has their ratios."""
    documents = read([file])
    document = documents[file.name]
    batches = document["batches"]
    ratios = {"vLLM 0.25.1, offline": "times_vllm", "floor: reading the bytes": "times_floor"}
    lines = [Line("Baton", [(each["batch"], each["step_ms"]) for each in batches])]
    for name, ratio in ratios.items():
        points = [(each["batch"], each["step_ms"] / each[ratio]) for each in batches]
        lines.append(Line(name, points, quiet=True))
    return plotted(
        lines, "sequences", "ms per decode step",
        "A decode step of one H200, Qwen3.5-35B-A3B, BF16, random weights",
        f"No drafts, {document['input_len']:,} tokens in, {document['output_len']:,} out",
        documents,
        "vLLM: the same load and kind of GPU, its own CUDA graphs; raw output not kept",
    )  # fmt: skip


def spread_step(file: Path) -> str:
    """Milliseconds of local steps and of steps that two members compute together, over the
    sequences of both, from a result of ``bench.spread_step --table``."""
    documents = read([file])
    lines = [
        Line(
            name,
            [(2 * each, ms) for members, each, drafts, ms in documents[file.name]["steps"]
             if (members, drafts) == (of, 0)],
        )
        for name, of in (("two local steps, at the same time", 1), ("one spread step", 2))
    ]  # fmt: skip
    title = "A decode step of two H200s, Qwen3.5-35B-A3B, BF16, random weights"
    note = "1,024 tokens of context, no drafts"
    x_label = "sequences of both GPUs together"
    return plotted(lines, x_label, "ms per step", title, note, documents)


def quantised_steps(files: dict[str, Path]) -> str:
    """Milliseconds of a decode step over the batch: results of ``bench.step`` by the names of their
    lines."""
    documents = read(files.values())
    lines = [
        Line(name, [(each["batch"], each["step_ms"]) for each in documents[file.name]["batches"]])
        for name, file in files.items()
    ]
    one = next(iter(documents.values()))
    note = f"No drafts, {one['input_len']:,} tokens in, {one['output_len']:,} out"
    title = "A decode step by the format of weights, Qwen3.5-35B-A3B, random weights"
    return plotted(lines, "sequences", "ms per decode step", title, note, documents)


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
    return plotted(
        lines, "mean KL divergence, 0.0001 nats a token", "tokens per second",
        "Speed and quality by --quantize",
        f"Speed: Qwen3.5-35B-A3B, random weights, {batch} sequences", steps,
        f"Divergence: the bundled model reading held-out problems on a CPU, {quality.name}",
        x_ticks=(),
    )  # fmt: skip


def _tokens_per_s(document: dict[str, Any], batch: int) -> float:
    (step_ms,) = (each["step_ms"] for each in document["batches"] if each["batch"] == batch)
    return 1e3 * batch / float(step_ms)


def drafts(file: Path, acceptance: float) -> str:
    """Tokens per second with 1, 2 and 3 drafts over those without drafts, by the batch, from a
    result of ``bench.speculation`` (retired)."""
    documents = read([file])
    document = documents[file.name]
    steps = [each for each in document["steps"] if each["acceptance"] == acceptance]
    numbers = sorted({each["drafts"] for each in steps if each["drafts"] in ("1", "2", "3")})
    lines = [
        Line(
            f"K = {number}",
            [(each["batch"], each["times_off"]) for each in steps if each["drafts"] == number],
        )
        for number in numbers
    ]
    return plotted(
        lines, "sequences", "times the tokens/s without drafts",
        "Drafts of K tokens, Qwen3.5-35B-A3B, random weights",
        f"Acceptance of {acceptance} given, not measured; {document['input_len']:,} tokens in, one "
        "H200, BF16", documents,
    )  # fmt: skip


def first_tokens(files: dict[str, Path]) -> str:
    """Milliseconds from the launch of one prompt to its first token, over its length: results of
    ``bench.step`` by the names of their lines."""
    documents = read(files.values())
    lines = []
    for name, file in files.items():
        found = documents[file.name]["single_prompts_ms"]
        points = [(int(tokens), ms) for tokens, ms in found.items()]
        lines.append(Line(name, [(tokens, ms) for tokens, ms in points if _whole_power(tokens)]))
    title = "One prompt from launch to first token, Qwen3.5-35B-A3B, random weights"
    note = "One H200, BF16"
    return plotted(lines, "tokens of the prompt", "ms", title, note, documents, log_y=True)


def _whole_power(number: int) -> bool:
    """True for powers of two: other lengths would crowd the axis."""
    return number.bit_count() == 1
