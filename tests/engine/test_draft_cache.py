"""A cache that was decoded with drafts is that of decoding without, bit for bit.

Refused drafts, and the entries of the rings that they leave, are no part of it. On the CPU the bits
of a token depend on how many rows a step has, so the kernels of these tests compute each row alone.
"""

import random
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F

from engine.batch import Binding, ForwardBatch, Row
from engine.inputs import Inputs, Rows
from engine.kernels.attention import torch_attention
from engine.kernels.attention.torch_attention import Span
from engine.kernels.dense.torch_linear import Linear
from engine.kernels.interface import Pending
from engine.kernels.reference import ReferenceKernels
from engine.model.weights import MoeWeights
from engine.runner import Engine
from engine.speculation import Speculation
from tests.engine.checkpoints import with_draft_layer
from tests.engine.driver import GREEDY, UNLIMITED, load_engine
from transport.copy.digest import digest
from transport.wire.sampling import SamplingParams

MAX_DRAFTS, NUM_TOKENS = 3, 40
PROMPTS = [tuple(random.Random(6).choices(range(250), k=length)) for length in (7, 64, 90)]
SETTINGS = (GREEDY, SamplingParams(temperature=0.9, seed=2), GREEDY)


class OneRow(Linear):
    """Products of each row alone: MKL takes other kernels for other numbers of rows."""

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.linear(row, weight) for row in x.split(1)])

    def add(self, into: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return into + self(x, weight)

    def suits_experts(self, x: torch.Tensor, gate_up: torch.Tensor, top_k: int) -> bool:
        return False


class OneToken(ReferenceKernels):
    """A token's bits do not depend on the other tokens of its step."""

    def __init__(self) -> None:
        super().__init__(prefill_block=64)
        self._linear = OneRow()

    def moe_add(
        self,
        hidden: torch.Tensor,
        pending: Pending,
        norm: torch.Tensor,
        eps: float,
        weights: MoeWeights,
        top_k: int,
        inputs: Inputs,
    ) -> tuple[torch.Tensor, None]:
        moe_add = partial(super().moe_add, pending=pending, norm=norm, eps=eps, weights=weights)
        added = [moe_add(h, top_k=top_k, inputs=inputs)[0] for h in hidden.split(1)]
        return torch.cat(added), None


def attend(
    q: torch.Tensor, k_rows: torch.Tensor, v_rows: torch.Tensor, rows: Rows, span: Span
) -> torch.Tensor:
    """``attend_decode`` of each row alone: shorter ones are not padded."""
    assert span == Span(), "of layers without a window"
    outputs = []
    for i, end in enumerate(rows.ends.tolist()):
        index = rows.context_rows[i, :end]
        k, v = (x.index_select(0, index).transpose(0, 1) for x in (k_rows, v_rows))
        grouped = q[i].view(k.shape[0], -1, q.shape[2])
        outputs.append(F.scaled_dot_product_attention(grouped, k, v).reshape(1, *q.shape[1:]))
    return torch.cat(outputs)


def softplus(x: torch.Tensor, whole: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Of each row alone: torch rounds what is left over of a vector's width otherwise."""
    return torch.cat([whole(row) for row in x.split(1)])


@pytest.fixture(autouse=True)
def _each_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_attention, "attend_decode", attend)
    monkeypatch.setattr(F, "softplus", partial(softplus, whole=F.softplus))


class Decoding:
    """The sequences of ``PROMPTS`` in one engine, each up to a number of tokens in its cache."""

    def __init__(self, name: str) -> None:
        kernels = OneToken()
        self.engine = load_engine(with_draft_layer(name), kernels, max_drafts=MAX_DRAFTS)
        self.pages = [tuple(range(9 * slot, 9 * slot + 9)) for slot in range(len(PROMPTS))]
        for slot, prompt in enumerate(PROMPTS):
            self.engine.bind(Binding(slot, prompt, (), SETTINGS[slot], UNLIMITED))
        rows = tuple(Row(slot, self.pages[slot], 0, ids) for slot, ids in enumerate(PROMPTS))
        result = self.engine.launch(ForwardBatch(rows)).result()
        self.num_steps = 0
        self.tokens = [[outcome.token_id or 0] for (outcome,) in result.sampled]

    def run(self, num_next: Callable[[], int], after: Callable[[], None]) -> list[str]:
        """Decode up to NUM_TOKENS - 1 tokens each, then one more without drafts -> digests."""
        while running := [s for s, ids in enumerate(self.tokens) if len(ids) < NUM_TOKENS - 1]:
            self._step(running, MAX_DRAFTS, num_next())
            after()
        assert {len(ids) for ids in self.tokens} == {NUM_TOKENS - 1}
        self._step(list(range(len(PROMPTS))), 0, 0)
        cache = self.engine.cache
        return [
            digest(cache, self.pages[slot], slot, len(prompt) + NUM_TOKENS - 1)
            for slot, prompt in enumerate(PROMPTS)
        ]

    def _step(self, slots: list[int], num_drafts: int, num_next: int) -> None:
        rows = tuple(
            Row(
                slot, self.pages[slot], len(PROMPTS[slot]) + len(self.tokens[slot]) - 1, None,
                num_drafts=max(0, min(num_drafts, NUM_TOKENS - 2 - len(self.tokens[slot]))),
            )
            for slot in slots
        )  # fmt: skip
        result = self.engine.launch(ForwardBatch(rows, num_next)).result()
        self.num_steps += 1
        for slot, outcomes in zip(slots, result.sampled, strict=True):
            self.tokens[slot] += [outcome.token_id or 0 for outcome in outcomes]


def poison_rings(engine: Engine) -> None:
    """Overwrite what is not pending."""
    drafts = engine._drafts
    assert isinstance(drafts, Speculation)
    for ring in drafts._rings:
        for slot, num in enumerate(ring.pending.tolist()):
            ring.inputs[slot, num:] = float("nan")
            ring.updates[slot, :, num:] = float("nan")


def set_right(decoding: Decoding, truth: list[list[int]], draw: random.Random) -> None:
    """Make most of the next step's drafts right."""
    drafts = decoding.engine._drafts
    assert isinstance(drafts, Speculation)
    for slot, expected in enumerate(truth):
        for place in range(MAX_DRAFTS):
            index = len(decoding.tokens[slot]) + place
            if draw.random() < 0.7 and index < len(expected):
                drafts._ids[place, slot] = expected[index]


@pytest.mark.parametrize("name", ["per_expert", "fused"])
def test_a_cache_decoded_with_drafts_is_that_of_plain_steps(name: str) -> None:
    plain, drafted, draw = Decoding(name), Decoding(name), random.Random(1)
    expected = plain.run(lambda: 0, lambda: None)

    def between_steps() -> None:
        poison_rings(drafted.engine)
        set_right(drafted, plain.tokens, draw)

    found = drafted.run(lambda: draw.randint(0, MAX_DRAFTS), between_steps)
    assert drafted.tokens == plain.tokens
    assert found == expected
    assert drafted.num_steps < plain.num_steps - 5, "drafts were accepted"
