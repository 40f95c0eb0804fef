"""Models that the Triton kernels do not do are named before any kernel is compiled."""

from dataclasses import replace

import pytest
import torch

from engine.kernels.triton_support import unsupported
from engine.model.config import ModelConfig
from tests.engine.compiled_kernels import FULL_SIZE

CONFIG = ModelConfig.read(FULL_SIZE.parent)


def test_the_full_size_model_is_supported() -> None:
    assert unsupported(CONFIG, torch.bfloat16) == ""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts_per_tok": 6}, "num_experts_per_tok 6 "),
        ({"head_dim": 192}, "head_dim 192 "),
        ({"head_dim": 8, "num_attention_heads": 64}, "head_dim 8 "),
        ({"rotary_dim": 96}, "rotary_dim 96 "),
        ({"linear_value_head_dim": 256}, "linear_value_head_dim of different"),
        ({"linear_key_head_dim": 96, "linear_value_head_dim": 96}, "linear_key_head_dim 96 "),
        ({"linear_num_key_heads": 1, "linear_num_value_heads": 1}, "channels 384 "),
        ({"linear_num_value_heads": 48}, "linear_num_value_heads 48 "),
        ({"num_attention_heads": 6}, "num_key_value_heads 3 "),
    ],
)
def test_what_is_not_is_named(changes: dict[str, int], named: str) -> None:
    assert named in unsupported(replace(CONFIG, **changes), torch.bfloat16)  # type: ignore[arg-type]
