"""Drafts accepted with a given probability on the GPU: those that the reference draws."""

import json
import random

import pytest
import torch
from msgspec import structs

from bench.dummy_checkpoint import make_folder
from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.kernels.sampling.torch_given_acceptance import uniform
from engine.runner import Engine
from engine.step import Step
from tests.gpu.teacher_forced import PAGES_EACH, VOCAB, four_layers, pages
from tests.gpu.test_speculation import FIRST_SPECIAL_ID
from transport.copy.memory import own_memory
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

GIVEN, MAX_DRAFTS, NUM_STEPS = 0.7, 3, 60
PROMPT_LENS = (5, 64, 65, 130, 1000, 63, 128, 31)
SETTINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, logprobs=2),
    SamplingParams(temperature=0.7, presence_penalty=1.5, repetition_penalty=1.2),
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    given, folder = tmp_path_factory.mktemp("config"), tmp_path_factory.mktemp("model")
    settings = four_layers()
    settings["text_config"]["eos_token_id"] = FIRST_SPECIAL_ID
    (given / "config.json").write_text(json.dumps(settings))
    make_folder(given, folder, FIRST_SPECIAL_ID)
    slots = len(PROMPT_LENS)
    config = EngineConfig(
        model_dir=folder, load_format="dummy", device="cuda", num_state_slots=slots,
        num_pages=slots * PAGES_EACH, max_drafts=MAX_DRAFTS, draft_acceptance=GIVEN,
    )  # fmt: skip
    return Engine.load(config, own_memory("cuda", "given-acceptance").allocate)


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_drafts_that_the_reference_draws_are_accepted(engine: Engine, ahead: int) -> None:
    draw = random.Random(1)
    prompts = [tuple(draw.choices(range(VOCAB), k=length)) for length in PROMPT_LENS]
    for slot, prompt in enumerate(prompts):
        sampling = structs.replace(SETTINGS[slot % len(SETTINGS)], seed=2**40 + slot)
        engine.bind(Binding(slot, prompt, (), sampling, StopRule(1 << 20)))
    rows = tuple(Row(slot, pages(slot), 0, prompt) for slot, prompt in enumerate(prompts))
    engine.launch(ForwardBatch(rows)).result()
    lengths = [len(prompt) + 1 for prompt in prompts]
    verified: list[tuple[int, int, bool]] = []
    pending: list[Step] = []
    for step in range(NUM_STEPS):
        # What the host knows of a length while a step is under way is too little.
        rows = tuple(
            Row(slot, pages(slot), length - 1 + len(pending), None, num_drafts=MAX_DRAFTS)
            for slot, length in enumerate(lengths)
        )
        pending.append(engine.launch(ForwardBatch(rows, (step + 1) % (MAX_DRAFTS + 1))))
        if len(pending) <= ahead:
            continue
        result = pending.pop(0).result()
        for slot, (num_drafts, sampled) in enumerate(
            zip(result.drafts, result.sampled, strict=True)
        ):
            places = range(min(num_drafts, len(sampled)))
            verified += [(slot, lengths[slot] + i, i + 1 < len(sampled)) for i in places]
            lengths[slot] += len(sampled)
    seeds = torch.tensor([2**40 + slot for slot, _, _ in verified])
    drawn = uniform(seeds, torch.tensor([position for _, position, _ in verified])) < GIVEN
    assert drawn.tolist() == [accepted for _, _, accepted in verified]
    assert len(verified) > 300
    assert float(drawn.float().mean()) == pytest.approx(GIVEN, abs=0.1)
