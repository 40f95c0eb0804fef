"""float32 logits that engines on the GPU are compared with, at the positions that these sample:
those behind each prompt and behind all later tokens of a text but the last."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from engine.batch import Row
from engine.config import EngineConfig, Quantize
from engine.inputs import Inputs
from engine.kernels.reference import ReferenceKernels
from engine.model.model import finished
from engine.runner import Engine
from tests.gpu.teacher_forced import PAGES_EACH, pages


def save_random(settings: dict[str, Any], folder: Path) -> None:
    """Save transformers' model of these settings with random weights in bfloat16. Gemma scales its
    embeddings by itself."""
    from transformers import AutoConfig, AutoModelForCausalLM

    scaled = settings["model_type"].startswith("gemma")
    torch.manual_seed(0)
    config = AutoConfig.for_model(**settings)
    with torch.device("cuda"), torch.inference_mode():
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
        for name, parameter in model.named_parameters():
            if name.endswith("_proj.bias"):
                parameter.normal_(0.0, 0.3)
            elif parameter.dim() > 1 and "conv" not in name:
                unit = "embed" in name and not scaled
                parameter.normal_(0.0, 1.0 if unit else parameter.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    del model
    torch.cuda.empty_cache()


def of_transformers(
    checkpoint: Path, texts: Sequence[list[int]], prompt_lens: Sequence[int], device: str = "cuda"
) -> list[torch.Tensor]:
    """The logits of transformers' model."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    model, found = model.to(device).eval(), []
    with torch.inference_mode():
        for text, length in zip(texts, prompt_lens, strict=True):
            logits = model(torch.tensor([text], device=device)).logits[0]
            found.append(logits[length - 1 : -1].clone())
    return found


def of_engine(
    twin: Engine, texts: Sequence[list[int]], prompt_lens: Sequence[int]
) -> list[torch.Tensor]:
    """The logits of an engine in float32, with each text computed as one prompt."""
    return [
        of_row(twin, Row(slot, pages(slot), 0, tuple(text[:-1])), length - 1)
        for slot, (text, length) in enumerate(zip(texts, prompt_lens, strict=True))
    ]


def of_row(engine: Engine, row: Row, first: int = 0) -> torch.Tensor:
    """The logits of an engine behind each token of ``row`` from ``first`` on, in one pass."""
    assert row.token_ids is not None
    device = engine.cache.kv.device
    with torch.inference_mode():
        inputs = Inputs.of((row,), engine.layout, device)
        index = torch.arange(first, len(row.token_ids), device=device)
        inputs = replace(inputs, sample_index=index)
        hidden = finished(
            engine._model.forward(inputs, inputs.prefill_ids, engine.cache, engine._kernels)
        )
        return engine._model.logits(hidden, engine.num_ids, engine._kernels)


def loaded(checkpoint: Path, num_slots: int) -> Engine:
    """The engine of a checkpoint, whose memory is poisoned."""
    config = EngineConfig(checkpoint, PAGES_EACH * num_slots, num_slots, device="cuda", poison=True)
    return Engine.load(config, lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"))


def drawn(
    folder: Path, num_slots: int, dtype: Literal["float32", "bfloat16"], quantize: Quantize
) -> Engine:
    """An engine with random weights, in float32 with the reference kernels."""
    config = EngineConfig(
        folder, PAGES_EACH * num_slots, num_slots, load_format="dummy", device="cuda",
        dtype=dtype, quantize=quantize, poison=True,
    )  # fmt: skip
    kernels = ReferenceKernels() if dtype == "float32" else None
    return Engine.load(
        config, lambda n: torch.empty(n, dtype=torch.uint8, device="cuda"), kernels=kernels
    )
