"""Batches that use each path of the kernels once, so that no request waits for a compilation.

Pure: the engine runs them before any page or state slot is handed out, and uses the first ones.
tests/engine/test_warm_up.py checks that they miss none.
"""

from collections.abc import Iterator
from itertools import product

from engine.batch import Binding, ForwardBatch, Row
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.sampling import Constraint, SamplingParams, StopRule

TOKENS = (1, 16, 32, 65, 192, 364, 640, 1041, 8192)
ROWS = (1, 2, 16)
PROMPTS = (24, 40)
SAMPLING = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=1.0, top_k=20),
    SamplingParams(temperature=1.0, top_k=100, top_p=0.9),
    SamplingParams(temperature=1.0, presence_penalty=1.0),
    SamplingParams(constraint=Constraint(thought_end=0, thought_budget=0, closing_ids=(0, 0, 0))),
)
"""Sampling settings of the first row: a batch uses other kernels if a row has filters or penalties,
or is constrained."""


def batches(
    layout: CacheLayout, pools: PoolSize, max_seq_len: int, max_prompt_tokens: int, *, decodes: bool
) -> Iterator[tuple[list[Binding], ForwardBatch]]:
    """The batches to run one after another, each with the bindings that it needs. None has more
    than ``max_prompt_tokens``, for which the engine keeps memory free."""
    capacity = min(layout.page_size * pools.num_pages, max_seq_len, max_prompt_tokens)
    slots = range(pools.num_state_slots)
    new = [_binding(slot, SAMPLING[0]) for slot in slots[: max(*ROWS, *PROMPTS)]]
    for length in sorted({min(num_tokens, capacity) for num_tokens in TOKENS}):
        pages = tuple(range(layout.pages_for(length)))
        chunks = [(0, length)] if length <= 64 else [(0, 64), (64, length)]
        for start, end in chunks:
            row = Row(0, pages, start, (0,) * (end - start), sample=end == length)
            yield new, ForwardBatch((row,))
            new = []
    for num_rows in PROMPTS:
        yield [], ForwardBatch(tuple(Row(slot, (0,), 0, (0,)) for slot in slots[:num_rows]))
    for num_rows, sampling in product(ROWS, SAMPLING):
        prompts = tuple(Row(slot, (0,), 0, (0,)) for slot in slots[:num_rows])
        yield [_binding(0, sampling)], ForwardBatch(prompts)
        if decodes:
            steps = tuple(Row(slot, (0,), 1, None) for slot in slots[:num_rows])
            yield [], ForwardBatch(steps)


def _binding(slot: int, sampling: SamplingParams) -> Binding:
    return Binding(slot, (0,), (), sampling, StopRule(1 << 20))
