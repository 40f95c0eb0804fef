"""The time of decode steps one behind the other, and of their waits for others."""

from collections.abc import Callable, Sequence

import torch

from engine.spread.outcome import Waited

WARM_STEPS = 6
"""Launched before the timed ones."""


def step_ms(launch: Callable[[int], None], steps: int) -> float:
    """ms on the device of each of ``steps`` steps behind ``WARM_STEPS`` others. ``launch`` enqueues
    the step of a number; the first is 0."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    for i in range(WARM_STEPS + steps):
        if i == WARM_STEPS:
            began.record()
        launch(i)
    ended.record()
    ended.synchronize()
    ms: float = began.elapsed_time(ended)
    return ms / steps


def graph_ms(enqueue: Callable[[], object], replays: int) -> float:
    """ms on the device of a replay of the graph that ``enqueue`` captures; its kernels have run
    before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        enqueue()
    return step_ms(lambda _: graph.replay(), replays)


def mean_us(waited: Sequence[Waited], num_members: int) -> dict[str, list[float]]:
    """Mean µs that a step waited for each member: for its rows, and for its results."""
    kinds = {"rows": [each.rows_s for each in waited], "results": [w.results_s for w in waited]}
    return {
        kind: [
            round(1e6 * sum(step[i] for step in steps) / max(1, len(steps)), 1)
            for i in range(num_members)
        ]
        for kind, steps in kinds.items()
    }
