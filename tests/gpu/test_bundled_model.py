"""The bundled model on the GPU: the CPU's answers in float32, right answers in bfloat16."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from engine.batch import Binding, ForwardBatch, Row
from engine.config import EngineConfig
from engine.runner import Engine
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MODELS = Path(__file__).parents[2] / "models"
STOP = (1282, 1280)
PAGES_EACH = 8


def answers(
    device: str,
    dtype: str,
    problems: list[dict[str, str]],
    quantize: str = "none",
    num_drafts: int = 0,
) -> list[str]:
    """Greedy answers, fifty problems at a time."""
    tokenizer = Tokenizer.from_file(str(MODELS / "tiny/tokenizer.json"))
    config = EngineConfig(
        model_dir=MODELS / "tiny", device=device, dtype=dtype, num_valid_ids=1306,
        num_pages=50 * PAGES_EACH, num_state_slots=50, quantize=quantize,
        max_drafts=num_drafts,
    )  # fmt: skip
    engine = Engine.load(config, lambda n: torch.empty(n, dtype=torch.uint8, device=device))
    found = []
    for first in range(0, len(problems), 50):
        prompts = [
            tokenizer.encode(
                f"<|im_start|>user\n{p['question']}<|im_end|>\n"
                "<|im_start|>assistant\n<think>\n\n</think>\n\n",
                add_special_tokens=False,
            ).ids
            for p in problems[first : first + 50]
        ]
        found += [tokenizer.decode(ids) for ids in generate(engine, prompts, num_drafts)]
    return found


def generate(engine: Engine, prompts: list[list[int]], num_drafts: int) -> list[list[int]]:
    greedy, stop = SamplingParams(temperature=0.0), StopRule(200, stop_token_ids=STOP)
    tables = [tuple(range(i * PAGES_EACH, (i + 1) * PAGES_EACH)) for i in range(len(prompts))]
    for slot, prompt in enumerate(prompts):
        engine.bind(Binding(slot, tuple(prompt), (), greedy, stop))
    rows = [Row(i, tables[i], 0, tuple(prompt)) for i, prompt in enumerate(prompts)]
    outputs: list[list[int]] = [[] for _ in prompts]
    running = list(range(len(prompts)))
    while running:
        batch = ForwardBatch(tuple(rows), num_drafts or None)
        sampled = engine.launch(batch).result().sampled
        for slot, outcomes in zip(running, sampled, strict=True):
            outputs[slot] += [outcome.token_id for outcome in outcomes]
            if ends := [i for i, token in enumerate(outputs[slot]) if token in STOP]:
                del outputs[slot][ends[0] + 1 :]
        running = [s for s in running if outputs[s][-1] not in STOP and len(outputs[s]) < 200]
        rows = [
            Row(s, tables[s], len(prompts[s]) + len(outputs[s]) - 1, None, num_drafts=num_drafts)
            for s in running
        ]
    return [[i for i in ids if i not in STOP] for ids in outputs]


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    return [json.loads(line) for line in (MODELS / "heldout.jsonl").read_text().splitlines()]


def test_float32_gives_the_cpus_answers(problems: list[dict[str, str]]) -> None:
    assert answers("cuda", "float32", problems) == answers("cpu", "float32", problems)


def test_drafts_change_no_answer(problems: list[dict[str, str]]) -> None:
    """Pass by pass: the Triton kernels do not support this model's shapes."""
    plain = answers("cuda", "float32", problems[:50])
    assert answers("cuda", "float32", problems[:50], num_drafts=3) == plain


def test_bfloat16_answers_nine_in_ten(problems: list[dict[str, str]]) -> None:
    found = answers("cuda", "bfloat16", problems)
    right = [
        f"#### {p['final']}" in answer.splitlines()[-1:]
        for p, answer in zip(problems, found, strict=True)
    ]
    print(f"{sum(right)} of {len(right)} right")
    assert sum(right) >= 0.9 * len(right)


def test_fp8_answers_196_of_200(problems: list[dict[str, str]]) -> None:
    found = answers("cuda", "bfloat16", problems, quantize="fp8")
    right = [
        f"#### {p['final']}" in answer.splitlines()[-1:]
        for p, answer in zip(problems, found, strict=True)
    ]
    print(f"{sum(right)} of {len(right)} right")
    assert sum(right) >= 196
