"""Decode steps as they run on CUDA, drafts included, against the reference kernels."""

import json

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.graphs import shared_pages
from engine.graphs.draft_graphs import DraftGraphs
from engine.kernels.triton_dot import INTERPRETED
from engine.runner import Engine
from tests.kernels.sets import cuda_path
from transport.wire.sampling import Constraint, SamplingParams, StopRule

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]

PROMPTS = ((5, 6, 7, 8), tuple(range(40, 110)))
THOUGHT = Constraint("", thought_end=9, thought_budget=2, closing_ids=(8, 9), answer_ids=(7,))
SETTINGS = (
    SamplingParams(temperature=0.0, constraint=THOUGHT),
    SamplingParams(temperature=0.8, seed=4, presence_penalty=0.9, frequency_penalty=0.5),
)
NUM_SLOTS, PAGES_EACH, NUM_TOKENS = 2, 3, 5


@pytest.fixture(scope="module", params=["qwen3_5_moe", "qwen3_5"])
def settings(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> EngineConfig:
    folder = tmp_path_factory.mktemp("model")
    cuda_path.write_config(folder, intermediate_size=320)
    config = json.loads((folder / "config.json").read_text()) | {"model_type": request.param}
    (folder / "config.json").write_text(json.dumps(config))
    return EngineConfig(
        folder, NUM_SLOTS * PAGES_EACH, NUM_SLOTS, load_format="dummy", dtype="float32",
        max_drafts=1, decode_buckets=(NUM_SLOTS,),
    )  # fmt: skip


@pytest.fixture
def on_cuda(settings: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A sequence's tokens of a step read its pages together, though they are few."""
    cuda_path.on_the_cpu(monkeypatch)
    monkeypatch.setattr(shared_pages, "MIN_TOKENS", 0)
    return cuda_path.load(settings)


def pages(slot: int) -> tuple[int, ...]:
    return tuple(range(slot * PAGES_EACH, (slot + 1) * PAGES_EACH))


def start(engine: Engine) -> list[list[int]]:
    for slot, prompt in enumerate(PROMPTS):
        engine.bind(Binding(slot, prompt, (), SETTINGS[slot], StopRule(99)))
    rows = tuple(Row(slot, pages(slot), 0, prompt) for slot, prompt in enumerate(PROMPTS))
    sampled = engine.launch(ForwardBatch(rows)).result().sampled
    return [[outcome.token_id or 0] for (outcome,) in sampled]


def test_steps_with_drafts_give_the_tokens_of_plain_decoding(
    settings: EngineConfig, on_cuda: Engine
) -> None:
    reference = Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8))
    truth = start(reference)
    for step in range(NUM_TOKENS):
        rows = tuple(Row(s, pages(s), len(PROMPTS[s]) + step, None) for s in range(NUM_SLOTS))
        for slot, outcomes in enumerate(reference.launch(ForwardBatch(rows)).result().sampled):
            truth[slot] += [outcome.token_id or 0 for outcome in outcomes]

    drafts = on_cuda._drafts
    assert isinstance(drafts, DraftGraphs)
    tokens = start(on_cuda)
    running, num_steps, num_accepted = [0, 1], 0, 0
    while running:
        for slot in running:
            if num_steps % 3 != 2 and len(tokens[slot]) < len(truth[slot]):  # else a random draft
                drafts._tables.drafts[0, slot] = truth[slot][len(tokens[slot])]
                if slot in drafts._choices._on_host:
                    with torch.inference_mode():
                        drafts._choices._on_host[slot].ids[0] = truth[slot][len(tokens[slot])]
        rows = tuple(
            Row(s, pages(s), len(PROMPTS[s]) + len(tokens[s]) - 1, None, num_drafts=1)
            for s in running
        )
        result = on_cuda.launch(ForwardBatch(rows, num_next_drafts=1)).result()
        for slot, outcomes in zip(running, result.sampled, strict=True):
            tokens[slot] += [outcome.token_id or 0 for outcome in outcomes]
            num_accepted += len(outcomes) - 1
        running = [slot for slot in running if len(tokens[slot]) <= NUM_TOKENS]
        num_steps += 1
    assert [own[: NUM_TOKENS + 1] for own in tokens] == truth
    assert num_accepted > 0
    assert int(drafts._memory.shared.reads.num_items) > 0
