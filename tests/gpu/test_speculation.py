"""Drafts on the GPU: the tokens of plain decoding, whatever is drafted, accepted and changed."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from bench.dummy_checkpoint import make_folder
from bench.engine_bench import CONSTRAINT
from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.graphs.draft_graphs import DraftGraphs
from engine.runner import Engine
from tests.gpu.teacher_forced import PAGES_EACH, VOCAB, four_layers, pages
from transport.copy.memory import own_memory
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]

NUM_TOKENS, MAX_DRAFTS = 96, 3
FIRST_SPECIAL_ID = VOCAB - 100
PROMPT_LENS = (5, 64, 65, 130, 1000, 63, 128, 31, 9, 512, 700, 2, 77, 300, 64, 40)
SETTINGS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=4, logprobs=2),
    SamplingParams(temperature=0.7, presence_penalty=1.5, repetition_penalty=1.2, seed=5),
    SamplingParams(temperature=1.0, frequency_penalty=0.5, seed=6, constraint=CONSTRAINT),
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given, folder = tmp_path_factory.mktemp("config"), tmp_path_factory.mktemp("model")
    settings = four_layers()
    settings["text_config"]["eos_token_id"] = FIRST_SPECIAL_ID
    (given / "config.json").write_text(json.dumps(settings))
    make_folder(given, folder, FIRST_SPECIAL_ID)
    return folder


def load(folder: Path, max_drafts: int) -> Engine:
    slots = len(PROMPT_LENS)
    settings = EngineConfig(
        model_dir=folder, load_format="dummy", device="cuda", num_state_slots=slots,
        num_pages=slots * PAGES_EACH, max_drafts=max_drafts,
    )  # fmt: skip
    return Engine.load(settings, own_memory("cuda", f"drafts{max_drafts}").allocate)


@pytest.fixture(scope="module")
def prompts() -> list[tuple[int, ...]]:
    draw = random.Random(1)
    return [tuple(draw.choices(range(VOCAB), k=length)) for length in PROMPT_LENS]


def start(engine: Engine, prompts: Sequence[tuple[int, ...]]) -> list[list[int]]:
    for slot, prompt in enumerate(prompts):
        sampling = SETTINGS[slot % len(SETTINGS)]
        engine.bind(Binding(slot, prompt, (), sampling, StopRule(1 << 20)))
    rows = tuple(Row(slot, pages(slot), 0, prompt) for slot, prompt in enumerate(prompts))
    result = engine.launch(ForwardBatch(rows)).result()
    return [[outcome.token_id or 0] for (outcome,) in result.sampled]


@pytest.fixture(scope="module")
def plain(config: Path, prompts: list[tuple[int, ...]]) -> list[list[int]]:
    engine = load(config, 0)
    tokens = start(engine, prompts)
    for _ in range(NUM_TOKENS):
        rows = tuple(
            Row(slot, pages(slot), len(prompt) + len(tokens[slot]) - 1, None)
            for slot, prompt in enumerate(prompts)
        )
        for slot, (outcome,) in enumerate(engine.launch(ForwardBatch(rows)).result().sampled):
            tokens[slot].append(-1 if outcome.token_id is None else outcome.token_id)
    del engine
    torch.cuda.empty_cache()
    return tokens


@pytest.fixture(scope="module")
def engine(config: Path) -> Engine:
    return load(config, MAX_DRAFTS)


def replace_draft(drafts: DraftGraphs, slot: int, place: int, token: int) -> None:
    """On the GPU, and for a grammar's mask on the host."""
    drafts._tables.drafts[place, slot] = token
    copied = drafts._choices._on_host.get(slot)
    if copied is not None and place < len(copied.ids):
        copied.copied.synchronize()
        with torch.inference_mode():
            copied.ids[place] = token


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 3, -1])
@pytest.mark.parametrize("right", [0.0, 0.7, 1.0])
def test_the_tokens_of_plain_decoding(
    engine: Engine,
    prompts: list[tuple[int, ...]],
    plain: list[list[int]],
    num_drafts: int,
    right: float,
) -> None:
    """``right``: how often an oracle replaces a draft; ``num_drafts`` -1: another one each step."""
    draw, drafts = random.Random(num_drafts), engine._drafts
    assert isinstance(drafts, DraftGraphs)
    tokens = start(engine, prompts)
    running, num_steps = list(range(len(prompts))), 0
    while running:
        for slot in running:
            for place in range(MAX_DRAFTS):
                index = len(tokens[slot]) + place
                if draw.random() < right and index < len(plain[slot]):
                    replace_draft(drafts, slot, place, plain[slot][index])
        rows = tuple(
            Row(s, pages(s), len(prompts[s]) + len(tokens[s]) - 1, None, num_drafts=MAX_DRAFTS)
            for s in running
        )
        num_next = draw.randint(0, 3) if num_drafts < 0 else num_drafts
        result = engine.launch(ForwardBatch(rows, num_next)).result()
        num_steps += 1
        for slot, outcomes in zip(running, result.sampled, strict=True):
            tokens[slot] += [-1 if o.token_id is None else o.token_id for o in outcomes]
        running = [s for s in running if len(tokens[s]) <= NUM_TOKENS]
    differing = [
        (slot, next(i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b))
        for slot, (ours, theirs) in enumerate(zip(tokens, plain, strict=True))
        if ours[: NUM_TOKENS + 1] != theirs
    ]
    assert not differing, "(state slot, first token that differs)"
    if right == 1.0 and num_drafts == MAX_DRAFTS:
        assert num_steps <= NUM_TOKENS / 4 + 3


def test_steps_may_run_ahead_of_their_results(
    engine: Engine, prompts: list[tuple[int, ...]], plain: list[list[int]]
) -> None:
    tokens = start(engine, prompts)
    steps = []
    for step in range(NUM_TOKENS):
        rows = tuple(
            Row(slot, pages(slot), len(prompt) + step, None, num_drafts=2)
            for slot, prompt in enumerate(prompts)
        )
        steps.append(engine.launch(ForwardBatch(rows, 2)))
        if len(steps) > 1:
            for slot, outcomes in enumerate(steps.pop(0).result().sampled):
                tokens[slot] += [outcome.token_id or 0 for outcome in outcomes]
    for slot, expected in enumerate(plain):
        length = min(len(expected), len(tokens[slot]))
        assert tokens[slot][:length] == expected[:length]


def test_steps_without_drafts_write_the_draft_layers_kv(
    engine: Engine, prompts: list[tuple[int, ...]]
) -> None:
    found = []
    for num_next in (1, 0):
        engine.cache.kv.fill_(float("nan"))
        tokens = start(engine, prompts)
        for _ in range(24):
            rows = tuple(
                Row(slot, pages(slot), len(prompt) + len(tokens[slot]) - 1, None, num_drafts=1)
                for slot, prompt in enumerate(prompts)
            )
            result = engine.launch(ForwardBatch(rows, num_next)).result()
            for slot, outcomes in enumerate(result.sampled):
                tokens[slot] += [outcome.token_id or 0 for outcome in outcomes]
        layers = [engine.cache.kv[list(pages(slot)), -1] for slot in range(len(prompts))]
        positions = [kv.transpose(1, 2).flatten(0, 1) for kv in layers]
        found.append([p[: len(ids) + 24] for p, ids in zip(positions, prompts, strict=True)])
    for whole, alone in zip(*found, strict=True):
        torch.testing.assert_close(alone, whole, rtol=2e-2, atol=2e-2)
