"""Sequences that are decoded while a long prompt is computed, beside their steps or before them."""

from collections.abc import Sequence

from engine.batch import Binding, ForwardBatch, Row
from engine.runner import Engine
from transport.wire.sampling import SamplingParams, StopRule

STEPS = 12


def generate(
    engine: Engine,
    prompts: Sequence[tuple[int, ...]],
    long: tuple[int, ...],
    *,
    beside: bool,
    share: int = 0,
) -> list[list[int]]:
    """The tokens of each prompt's sequence, and at last of ``long``, which is computed beside the
    others' steps or before them; then all are decoded together. Settings differ by sequence. Steps
    have a ``share`` of the multiprocessors meanwhile."""
    every, pages = [*prompts, long], 0
    tables: list[list[int]] = []
    for prompt in every:
        needed = engine.layout.pages_for(len(prompt) + 2 * STEPS * (1 + engine.max_drafts))
        tables.append(list(range(pages, pages + needed)))
        pages += needed
    for slot, prompt in enumerate(every):
        penalty = 0.7 * (slot % 2)
        sampling = SamplingParams(temperature=1.0, seed=slot, presence_penalty=penalty)
        engine.bind(Binding(slot, prompt, (), sampling, StopRule(1 << 20)))
    found: list[list[int]] = [[] for _ in every]
    last = len(prompts)

    def take(slots: Sequence[int], result) -> None:
        for slot, sampled in zip(slots, result.sampled, strict=True):
            found[slot] += [each.token_id for each in sampled]

    def step(slots: Sequence[int]) -> None:
        rows = [
            Row(i, tables[i], len(every[i]) + len(found[i]) - 1, None, num_drafts=engine.max_drafts)
            for i in slots
        ]
        take(slots, engine.launch(ForwardBatch(tuple(rows), engine.max_drafts)).result())

    shorter = range(last)
    rows = [Row(slot, tables[slot], 0, every[slot]) for slot in shorter]
    take(shorter, engine.launch(ForwardBatch(tuple(rows))).result())
    batch = ForwardBatch((Row(last, tables[last], 0, long),))
    if beside:
        overlapped = engine.overlapped(batch, share)
        for _ in range(STEPS):
            if not overlapped.enqueued:
                overlapped.enqueue()
            step(shorter)
        take([last], overlapped.result())
    else:
        take([last], engine.launch(batch).result())
        for _ in range(STEPS):
            step(shorter)
    for _ in range(STEPS):
        step(range(last + 1))
    return found
