"""What the graphs of a decode step with drafts take, one by one, in the order of a step."""

import statistics
from collections.abc import Callable

import torch

from engine.draft_graphs import DraftGraphs

REPEATS = 40


def graph_times(drafts: DraftGraphs, batch: int) -> dict[str, float]:
    """Milliseconds (medians) of the graphs for ``batch`` sequences, right after a step without
    drafts of so many: their rows are what the graphs read.

    ``verify_ms`` is the model with one token each, ``kv_ms`` the draft layer's KV alone,
    ``layer_ms`` the whole draft layer. ``head_ms``, the choice of the first draft, is added to
    that; ``draft_ms`` is a further draft, its layer and its choice.
    """
    shape, layer = (batch, 0), drafts.layer
    graphs: dict[str, Callable[[], None]] = {
        "verify_ms": drafts.verify_graphs[shape].replay,
        "kv_ms": layer.kv_graphs[shape].replay,
        "layer_ms": layer.layer_graphs[shape].replay,
        "head_ms": layer.draft_graphs[batch, 0].replay,
    }
    if (batch, 1) in layer.draft_graphs:
        graphs["draft_ms"] = layer.draft_graphs[batch, 1].replay
    taken: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(REPEATS):
        # The model takes milliseconds: the host is ahead, and what follows has no gaps.
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(graphs) + 1)]
        events[0].record()
        for replay, event in zip(graphs.values(), events[1:], strict=True):
            replay()
            event.record()
        events[-1].synchronize()
        for i, name in enumerate(graphs):
            taken[name].append(events[i].elapsed_time(events[i + 1]))
    return {name: round(statistics.median(values), 4) for name, values in taken.items()}
