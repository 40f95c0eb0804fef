"""The training forward equals transformers' own."""

from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

transformers = pytest.importorskip("transformers")

from models.recipe.architecture import CONFIG  # noqa: E402
from models.recipe.forward import logits_and_balance, unit_lower_inverse  # noqa: E402
from models.recipe.mixture import tool_chat  # noqa: E402

TINY = Path(__file__).parents[2] / "models/tiny"


def test_logits_equal_transformers() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3_5MoeTextConfig(**{**CONFIG, "initializer_range": 0.06})
    model = transformers.Qwen3_5MoeForCausalLM(config).float()
    ids = torch.randint(0, 1300, (2, 64))
    with torch.no_grad():
        ours, balance = logits_and_balance(model, ids)
        torch.testing.assert_close(ours, model(ids).logits, atol=1e-4, rtol=1e-3)
    assert balance >= 1


def test_logits_equal_transformers_on_a_conversation_with_tools() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3_5MoeTextConfig(**{**CONFIG, "initializer_range": 0.06})
    model = transformers.Qwen3_5MoeForCausalLM(config).float()
    tokenizer = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    text = "".join(piece for piece, _ in tool_chat(Random("forward")))
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    padded = torch.nn.functional.pad(ids, (0, -ids.shape[1] % 64))
    with torch.no_grad():
        ours, _ = logits_and_balance(model, padded)
        theirs = model(ids).logits
    difference = ours[:, : ids.shape[1]] - theirs
    # Rounding: of 360 tokens, transformers' float32 is up to 1.9e-4 from float64, ours 0.7e-4.
    assert difference.abs().max() < 5e-4
    assert difference.square().mean().sqrt() < 2e-5


def test_inverse_and_its_gradient() -> None:
    torch.manual_seed(0)
    matrix = 0.3 * torch.randn(2, 16, 16, dtype=torch.float64).tril(-1)
    matrix = (matrix + torch.eye(16)).requires_grad_()
    weight = torch.randn_like(matrix)
    ours = torch.autograd.grad((unit_lower_inverse(matrix) * weight).sum(), matrix)
    theirs = torch.autograd.grad((torch.linalg.inv(matrix) * weight).sum(), matrix)
    torch.testing.assert_close(ours, theirs)
