"""Other model families as they run on CUDA (prompts, decode steps, drafts), against the reference
kernels, at small and odd widths."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.batch import Binding, ForwardBatch, Keep, Row
from engine.config import EngineConfig
from engine.cuda_parts import CudaParts
from engine.kernels.reference import ReferenceKernels
from engine.kernels.triton_dot import INTERPRETED
from engine.kernels.triton_set import TritonKernels
from engine.kernels.triton_support import unsupported
from engine.model.registry import read_config
from engine.runner import Engine
from tests.kernels.sets import cuda_path
from transport.wire.sampling import SamplingParams, StopRule

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="for Triton's interpreter"),
    pytest.mark.timeout(400),
]

COMMON: dict[str, Any] = {
    "vocab_size": 272, "hidden_size": 192, "intermediate_size": 320, "num_hidden_layers": 2,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
    "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}  # fmt: skip
MOE: dict[str, Any] = {
    "hidden_size": 256, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
HYBRID: dict[str, Any] = {
    "hidden_size": 256, "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 3, "num_key_value_heads": 1, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "vocab_size": 544, "num_hidden_layers": 2,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama": COMMON | {"rope_parameters": LLAMA3},
    "llama-bias": COMMON | {"attention_bias": True},
    "llama-heads-80": COMMON | {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 80},
    "qwen3-heads-96": COMMON | {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 96},
    "qwen3": COMMON | {"num_attention_heads": 8, "num_key_value_heads": 1},
    "qwen2": COMMON | {"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 64},
    "qwen3_moe": COMMON | MOE | {"norm_topk_prob": True},
    "qwen3_moe-plain": COMMON | MOE | {"norm_topk_prob": False, "mlp_only_layers": [0]},
    "qwen3_5": HYBRID,
    "qwen3_5-odd": HYBRID | {"linear_num_value_heads": 12},
    "qwen3_next": HYBRID
    | MOE
    | {"num_experts_per_tok": 3, "shared_expert_intermediate_size": 128},
    "qwen2_moe": COMMON
    | MOE
    | {
        "num_attention_heads": 4, "num_key_value_heads": 4, "shared_expert_intermediate_size": 320,
        "norm_topk_prob": False, "use_sliding_window": True, "sliding_window": 21,
    },
    "gemma3_text": COMMON
    | {
        "sliding_window": 21, "query_pre_attn_scalar": 24,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
        },
    },
}  # fmt: skip
NUM_SLOTS, PAGES_EACH, NUM_TOKENS = 2, 3, 2
PROMPTS = ((5, 6, 7, 8), tuple(range(40, 110)))


def write_config(folder: Path, name: str) -> None:
    model_type = name.split("-")[0]
    config = (SHAPES | IN_FP8)[name] | {"model_type": model_type}
    if model_type in ("qwen3_5", "qwen3_next"):
        full_size = json.loads(cuda_path.FULL_SIZE.read_text())
        text = full_size["text_config"] | SHAPES[name] | {"intermediate_size": 320}
        config = text | {"model_type": model_type}
        if model_type == "qwen3_5":
            config = full_size | {"model_type": model_type, "text_config": text}
    (folder / "config.json").write_text(json.dumps(config))


def pages(slot: int) -> tuple[int, ...]:
    return tuple(range(slot * PAGES_EACH, (slot + 1) * PAGES_EACH))


def tokens(engine: Engine) -> list[list[int]]:
    """Greedy tokens: the first prompt whole, the other in two chunks, then steps of both."""
    greedy, found = SamplingParams(temperature=0.0), []
    for slot, prompt in enumerate(PROMPTS):
        engine.bind(Binding(slot, prompt, (), greedy, StopRule(99)))
    first, second = PROMPTS
    whole = Row(0, pages(0), 0, first)
    chunk = Row(1, pages(1), 0, second[:64], sample=False)
    [[one], _] = engine.launch(ForwardBatch((whole, chunk))).result().sampled
    rest = Row(1, pages(1), 64, second[64:])
    [[other]] = engine.launch(ForwardBatch((rest,))).result().sampled
    found = [[one.token_id or 0], [other.token_id or 0]]
    for step in range(NUM_TOKENS):
        rows = tuple(
            Row(slot, pages(slot), len(prompt) + step, None) for slot, prompt in enumerate(PROMPTS)
        )
        for slot, outcomes in enumerate(engine.launch(ForwardBatch(rows)).result().sampled):
            found[slot] += [outcome.token_id or 0 for outcome in outcomes]
    return found


FP8: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 128}
IN_FP8: dict[str, dict[str, Any]] = {
    "llama-fp8": SHAPES["llama"] | FP8 | {"hidden_size": 512, "intermediate_size": 512},
    "qwen3_moe-fp8": SHAPES["qwen3_moe"] | FP8 | {"hidden_size": 512},
    "qwen2-fp8": SHAPES["qwen2"] | FP8 | {"hidden_size": 512, "intermediate_size": 512},
}


@pytest.mark.parametrize("name", [*SHAPES, *IN_FP8])
def test_the_tokens_are_those_of_the_reference(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_config(tmp_path, name)
    model = read_config(tmp_path)
    assert unsupported(model.quantised() if name in IN_FP8 else model, torch.bfloat16) == ""
    settings = EngineConfig(
        tmp_path, NUM_SLOTS * PAGES_EACH, NUM_SLOTS, load_format="dummy", dtype="float32",
        decode_buckets=(NUM_SLOTS,), quantize="fp8" if name in IN_FP8 else "none",
    )  # fmt: skip
    truth = tokens(Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8)))
    assert len({*truth[0], *truth[1]}) > 2, "weights that decide nothing"
    cuda_path.on_the_cpu(monkeypatch)
    cuda_path.widen_tiles(monkeypatch)
    engine = cuda_path.load(settings)
    assert isinstance(engine._kernels, TritonKernels)
    assert engine._graphs is not None
    assert tokens(engine) == truth


def test_a_prompt_behind_a_kept_prefix_of_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without states keeps prefixes in slots behind those of sequences."""
    write_config(tmp_path, "llama")
    settings = EngineConfig(
        tmp_path, NUM_SLOTS * PAGES_EACH, NUM_SLOTS, load_format="dummy", dtype="float32",
        decode_buckets=(NUM_SLOTS,),
    )  # fmt: skip
    cuda_path.on_the_cpu(monkeypatch)
    cuda_path.widen_tiles(monkeypatch)
    engine, prompt, kept = cuda_path.load(settings), PROMPTS[1], NUM_SLOTS + 1
    shared = pages(0)[:1]

    def first_token(slot: int, row: Row) -> int | None:
        engine.bind(Binding(slot, prompt, (), SamplingParams(temperature=0.0), StopRule(99)))
        if row.start:
            engine.restore(slot, kept, row.start)
        return engine.launch(ForwardBatch((row,))).result().sampled[0][0].token_id

    whole = first_token(1, Row(1, pages(1), 0, prompt))
    engine.bind(Binding(0, prompt, (), SamplingParams(temperature=0.0), StopRule(99)))
    begun = Row(0, shared, 0, prompt[:64], sample=False, keep=Keep(64, kept))
    engine.launch(ForwardBatch((begun,))).result()
    assert first_token(1, Row(1, (*shared, *pages(1)[1:]), 64, prompt[64:])) == whole


def test_prompts_longer_than_their_window_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chunk of four pages, for a ring of three; a state is kept in its middle. The last chunks
    and the other prompt run as graphs."""
    write_config(tmp_path, "gemma3_text")
    each = 6
    settings = EngineConfig(
        tmp_path, 3 * each, 3, load_format="dummy", dtype="float32", decode_buckets=(2,),
        max_prompt_tokens=128,
    )  # fmt: skip
    long = tuple(range(20, 270)) + tuple(range(100, 150))
    other = (*long[:128], *range(40, 110))
    greedy = SamplingParams(temperature=0.0)

    def ids(engine: Engine, *rows: Row) -> list[int | None]:
        return [s[0].token_id for s in engine.launch(ForwardBatch(rows)).result().sampled if s]

    def found(engine: Engine) -> list[int | None]:
        mine, yours = tuple(range(each)), (0, 1, *range(each + 2, 2 * each))
        engine.bind(Binding(0, long, (), greedy, StopRule(99)))
        first = Row(0, mine, 0, long[:256], sample=False, keep=Keep(128, 2))
        tokens = ids(engine, first) + ids(engine, Row(0, mine, 256, long[256:]))
        engine.bind(Binding(1, other, (), greedy, StopRule(99)))
        engine.restore(1, 2, 128)
        tokens += ids(engine, Row(1, yours, 128, other[128:]))
        for step in range(NUM_TOKENS):
            tokens += ids(
                engine, Row(0, mine, len(long) + step, None), Row(1, yours, len(other) + step, None)
            )
        return tokens

    kernels = ReferenceKernels()
    truth = found(
        Engine.load(settings, lambda n: torch.zeros(n, dtype=torch.uint8), kernels=kernels)
    )
    assert len(truth) == 2 + 2 * NUM_TOKENS
    assert len({*truth}) > 2, "weights that decide nothing"
    cuda_path.on_the_cpu(monkeypatch)
    cuda_path.widen_tiles(monkeypatch)
    engine = cuda_path.load(settings)
    assert (engine.layout.ring_pages, engine.layout.num_window_layers) == (3, 1)
    parts = CudaParts(
        replace(settings, device="cuda"), engine._model, engine.cache, engine.layout,
        engine._kernels, engine.num_ids, 0, None,
    )  # fmt: skip
    engine._prefill_graphs = parts.prefill_graphs()
    assert found(engine) == truth
