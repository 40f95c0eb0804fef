"""The figure of what a user gets over what a GPU gives: a line for each run, a point for each level
of requests or agents at once."""

from collections.abc import Sequence

from bench.harness.html.charts import Chart, Line
from bench.harness.html.runs import Run
from bench.harness.html.sections import Section


def draw_trade(section: Section, runs: Sequence[Run]) -> None:
    """Draw generated tokens a second, per GPU where the number of GPUs is known, over tokens a
    second of a user."""
    per_gpu = all(run.num_gpus for run in runs)
    lines = []
    for run in runs:
        points, labels = [], []
        for level in run.levels:
            tpot_ms, rate = run.median(level, "tpot_ms", "p50"), run.median(level, "output_tok_s")
            if tpot_ms and rate:
                points.append((1000 / tpot_ms, rate / (run.num_gpus if per_gpu else 1)))
                labels.append(str(level))
        lines.append(Line(run.name, points, labels=labels))
    unit = "generated tok/s per GPU" if per_gpu else "generated tok/s"
    gpus = ", ".join(f"{run.name}: {run.num_gpus}" for run in runs)
    note = "tok/s per user: 1 / TPOT p50. Beside each point: requests at once."
    note += f" GPUs: {gpus}." if per_gpu else " No GPUs are recorded, so tok/s are the service's."
    title = f"Throughput {'per GPU ' if per_gpu else ''}over tokens a second of a user"
    section.draw(title, Chart(lines, "tok/s per user", unit), note)
