"""Every model family computes what transformers computes: float32, token for token."""

import json
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig

from engine.batch import Binding, ForwardBatch, Keep, Row
from engine.config import EngineConfig
from engine.kernels.reference import ReferenceKernels
from engine.loading.model_folder import read_model
from engine.model.layers import Attention
from engine.model.registry import FAMILIES, read_config
from engine.runner import Engine
from tests.engine.driver import GREEDY, UNLIMITED, Driver, Request, load_engine
from tests.engine.families import SHAPES, family_checkpoint, reference, with_dense_draft_layer
from transport.copy.pull import copy_sequence

NUM_TOKENS = 18  # the steps behind each prompt begin a page
NUM_PREFIX = 101
NUM_BEFORE = 9
LENGTHS = (1, 63, 65, 64 * 2 + 17)


def prompt(length: int) -> tuple[int, ...]:
    draw = random.Random(length)
    return tuple(draw.randrange(260) for _ in range(length))


@cache
def drafts(name: str) -> dict[int, list[int]]:
    """What our engine makes of the prompts, by their lengths."""
    requests = {length: Request(prompt(length), NUM_TOKENS) for length in LENGTHS}
    Driver(load_engine(family_checkpoint(name))).run(list(requests.values()))
    return {length: request.tokens for length, request in requests.items()}


@cache
@torch.inference_mode()
def truth(name: str, length: int) -> list[int]:
    """The greedy tokens of transformers, as in test_parity.py: our engine drafts them, and
    transformers chooses at each place, until all that it chose is what it was given."""
    tokens = drafts(name)[length]
    while True:
        text = torch.tensor([[*prompt(length), *tokens]])
        logits = reference(name)(text, use_cache=False).logits[0, length - 1 : -1]
        chosen: list[int] = logits.argmax(-1).tolist()
        if chosen == tokens:
            return tokens
        first = next(i for i in range(NUM_TOKENS) if chosen[i] != tokens[i])
        tokens = [*tokens[:first], chosen[first], *tokens[first + 1 :]]


def test_each_type_has_three_shapes() -> None:
    num_shapes = Counter(model_type for model_type, _ in SHAPES.values())
    multimodal = {name for name, family in FAMILIES.items() if family.multimodal}
    assert all(num_shapes[model_type] >= 3 for model_type in set(FAMILIES) - multimodal)


@pytest.mark.parametrize("name", SHAPES)
def test_alone_and_chunked(name: str) -> None:
    engine = load_engine(family_checkpoint(name))
    for length in LENGTHS:
        request = Request(prompt(length), NUM_TOKENS)
        Driver(engine, budget=64).run([request])
        assert request.tokens == truth(name, length)


@pytest.mark.parametrize("name", SHAPES)
def test_mixed_batch(name: str) -> None:
    requests = [Request(prompt(length), NUM_TOKENS) for length in LENGTHS * 2]
    Driver(load_engine(family_checkpoint(name)), budget=192).run(requests)
    for request in requests:
        assert request.tokens == truth(name, len(request.prompt))


@pytest.mark.parametrize("name", [name for name in SHAPES if "window" in name or "gemma" in name])
def test_windows_in_passes_of_all_rows(name: str) -> None:
    """As on GPUs: chunks may be longer than the ring of window pages."""
    requests = [Request(prompt(length), NUM_TOKENS) for length in LENGTHS * 2]
    engine = load_engine(family_checkpoint(name), kernels=ReferenceKernels())
    Driver(engine, budget=600).run(requests)
    for request in requests:
        assert request.tokens == truth(name, len(request.prompt))


@pytest.mark.parametrize("name", SHAPES)
def test_handoff_to_another_engine(name: str) -> None:
    prefill, decode = (load_engine(family_checkpoint(name)) for _ in range(2))
    for length in LENGTHS:
        ids = prompt(length)
        num_pages = prefill.layout.pages_for(length + NUM_TOKENS)
        there, here = tuple(range(num_pages)), tuple(range(100, 100 + num_pages))
        prefill.bind(Binding(3, ids, (), GREEDY, UNLIMITED))
        tokens = [_sampled(prefill, Row(3, there, 0, ids))]
        filled = prefill.layout.pages_for(length)
        copy_sequence(prefill.cache, there[:filled], 3, decode.cache, here[:filled], 7, length)
        decode.bind(Binding(7, ids, tuple(tokens), GREEDY, UNLIMITED))
        assert _to_the_end(decode, 7, here, length, tokens) == truth(name, length)


@pytest.mark.parametrize("name", SHAPES)
def test_behind_a_kept_prefix(name: str) -> None:
    """At a place that all types keep; without states, at any page too."""
    engine, ids, kept = load_engine(family_checkpoint(name)), prompt(LENGTHS[-1]), 9
    pages = tuple(range(20))
    for num_kept in (64,) if engine.layout.has_states else (64, 48):
        for slot, text in enumerate((ids[:NUM_PREFIX], ids)):
            engine.bind(Binding(slot, text, (), GREEDY, UNLIMITED))
        _sampled(engine, Row(0, pages, 0, ids[:NUM_PREFIX], keep=Keep(num_kept, kept)))
        engine.restore(1, kept, num_kept)
        shared = (*pages[: num_kept // 16], *range(50, 70))
        tokens = [_sampled(engine, Row(1, shared, num_kept, ids[num_kept:]))]
        assert _to_the_end(engine, 1, shared, len(ids), tokens) == truth(name, len(ids))


@pytest.mark.parametrize("name", SHAPES)
def test_computed_again_after_the_death_of_a_worker(name: str) -> None:
    """The next worker computes the prompt and what the dead one had sampled."""
    engine, ids, pages = load_engine(family_checkpoint(name)), prompt(65), tuple(range(20))
    had = truth(name, len(ids))[:NUM_BEFORE]
    engine.bind(Binding(3, ids, tuple(had), GREEDY, UNLIMITED))
    tokens = [*had, _sampled(engine, Row(3, pages, 0, (*ids, *had)))]
    assert _to_the_end(engine, 3, pages, len(ids), tokens) == truth(name, len(ids))


@pytest.mark.parametrize("name", SHAPES)
def test_moved_while_it_decodes(name: str) -> None:
    there, here = (load_engine(family_checkpoint(name)) for _ in range(2))
    ids, before, behind = prompt(65), tuple(range(20)), tuple(range(100, 120))
    there.bind(Binding(3, ids, (), GREEDY, UNLIMITED))
    tokens = [_sampled(there, Row(3, before, 0, ids))]
    _to_the_end(there, 3, before, len(ids), tokens, NUM_BEFORE)
    num_tokens = len(ids) + NUM_BEFORE - 1
    filled = there.layout.pages_for(num_tokens)
    copy_sequence(there.cache, before[:filled], 3, here.cache, behind[:filled], 7, num_tokens)
    here.bind(Binding(7, ids, tuple(tokens), GREEDY, UNLIMITED))
    assert _to_the_end(here, 7, behind, len(ids), tokens) == truth(name, len(ids))


@pytest.mark.parametrize("name", [name for name in SHAPES if SHAPES[name][0] == "qwen3_5_text"])
def test_drafts_of_a_dense_layer_change_no_token(name: str) -> None:
    engine = load_engine(with_dense_draft_layer(name), max_drafts=2)
    assert engine.max_drafts == 2
    requests = [Request(prompt(length), NUM_TOKENS) for length in LENGTHS]
    Driver(engine, num_drafts=lambda: 2).run(requests)
    for request in requests:
        assert request.tokens == truth(name, len(request.prompt))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen2", {"use_sliding_window": True, "sliding_window": 0}, "sliding_window: 0 is not"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping: 30.0"),
        ("gemma3_text", {"hidden_activation": "silu"}, "hidden_activation: 'silu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias: True; only False"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
         "factor: missing"),
        ("llama", {"rope_parameters": None, "rope_theta": 1e4, "rope_scaling": {"type": "yarn"}},
         r"rope_scaling\.rope_type: 'yarn'"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok: 7 of 6"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "unknown type: .*sliding_attention"),
        ("qwen3", {"attention_bias": True}, "attention_bias: True; only False"),
    ],
)  # fmt: skip
def test_what_is_not_computed_is_refused_by_name(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config = json.loads((family_checkpoint(name) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ValueError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_older_checkpoints_have_the_fields_of_rope_beside_rope_scaling(
    name: str, tmp_path: Path
) -> None:
    config = json.loads((family_checkpoint(name) / "config.json").read_text())
    rope = config.pop("rope_parameters")
    for field in ("rope_theta", "partial_rotary_factor"):
        config[field] = rope.pop(field, None)
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": rope or None}))
    assert read_config(tmp_path) == read_config(family_checkpoint(name))


def test_qwen3_next_may_name_the_interval_of_full_attention(tmp_path: Path) -> None:
    config = json.loads((family_checkpoint("qwen3_next") / "config.json").read_text())
    del config["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"full_attention_interval": 4}))
    assert read_config(tmp_path) == read_config(family_checkpoint("qwen3_next"))


@pytest.mark.parametrize(
    "name", ["qwen2-window", "qwen3-window", "qwen2_moe-window", "gemma3_text-tied", "qwen2_moe"]
)
def test_the_windows_of_layers_that_are_not_listed(name: str, tmp_path: Path) -> None:
    config = json.loads((family_checkpoint(name) / "config.json").read_text())
    del config["layer_types"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert read_config(tmp_path) == read_config(family_checkpoint(name))


def test_a_checkpoint_in_float16_is_computed_in_bfloat16(tmp_path: Path) -> None:
    config = json.loads((family_checkpoint("llama-odd") / "config.json").read_text())
    tensors = load_file(family_checkpoint("llama-odd") / "model.safetensors")
    halved = {key: value.half() for key, value in tensors.items()}
    found = []
    for name, stored in (("half", halved), ("full", {k: v.float() for k, v in halved.items()})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config | {"dtype": "float16"}))
        save_file(stored, tmp_path / name / "model.safetensors")
        engine = load_engine(tmp_path / name, dtype="bfloat16")
        assert engine.cache.kv.dtype == torch.bfloat16
        request = Request(prompt(65), NUM_TOKENS)
        Driver(engine).run([request])
        found.append(request.tokens)
    assert found[0] == found[1]


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_the_text_model_of_a_multimodal_gemma(prefix: str, tmp_path: Path) -> None:
    """Tensors and fields as released checkpoints name them, of transformers 5 and older."""
    name = "gemma3_text"
    config = json.loads((family_checkpoint(name) / "config.json").read_text())
    ropes = config.pop("rope_parameters")
    config |= {
        "rope_theta": ropes["full_attention"]["rope_theta"],
        "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"],
        "rope_scaling": {"rope_type": "linear", "factor": ropes["full_attention"]["factor"]},
    }
    outer = {"model_type": "gemma3", "text_config": config, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    tensors = load_file(family_checkpoint(name) / "model.safetensors")
    renamed = {key.replace("model.", prefix, 1): value for key, value in tensors.items()}
    renamed |= {f"{part}.x": torch.ones(2) for part in ("vision_tower", "multi_modal_projector")}
    save_file(renamed, tmp_path / "model.safetensors")
    request = Request(prompt(65), NUM_TOKENS)
    Driver(load_engine(tmp_path)).run([request])
    assert request.tokens == truth(name, 65)


def test_a_released_gemma_leaves_most_fields_out(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }  # fmt: skip
    outer = {"model_type": "gemma3", "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    ours, theirs = read_config(tmp_path), Gemma3TextConfig(**text)
    windows = [layer.mixer.window for layer in ours.layers if isinstance(layer.mixer, Attention)]
    kinds = [None if window is None else "sliding_attention" for window in windows]
    assert kinds == [kind if kind != "full_attention" else None for kind in theirs.layer_types]
    assert set(windows) == {1024, None}
    assert ours.tie_word_embeddings
    assert ours.vocab_size == theirs.vocab_size
    assert ours.attention.head_dim == theirs.head_dim
    assert ours.attention.num_key_value_heads == theirs.num_key_value_heads


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("qwen3_moe", "device: qwen3_moe runs on CPUs only with .*moe_intermediate_size 40 not a"),
        ("llama-odd", "device: llama runs on CPUs only with hidden_size 60 not a multiple of 64"),
    ],
)
def test_a_gpu_is_refused_before_anything_is_read(name: str, why: str) -> None:
    config = EngineConfig(
        model_dir=family_checkpoint(name), num_pages=8, num_state_slots=2, device="cuda",
        dtype="bfloat16",
    )  # fmt: skip
    with pytest.raises(ValueError, match=why):
        read_model(config)


def _to_the_end(
    engine: Engine,
    slot: int,
    pages: tuple[int, ...],
    length: int,
    tokens: list[int],
    num_tokens: int = NUM_TOKENS,
) -> list[int]:
    """Decode behind a prompt of ``length`` tokens and ``tokens``, to which the others are added."""
    while len(tokens) < num_tokens:
        tokens.append(_sampled(engine, Row(slot, pages, length + len(tokens) - 1, None)))
    return tokens


def _sampled(engine: Engine, row: Row) -> int:
    [[outcome]] = engine.launch(ForwardBatch((row,))).result().sampled
    assert outcome.token_id is not None
    return outcome.token_id
