"""The draft layer's reference: causal, its chain equal to its forward, stored as in checkpoints."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from safetensors import safe_open  # noqa: E402

from models.recipe import mtp  # noqa: E402
from models.recipe.architecture import CONFIG, add_draft, save  # noqa: E402
from models.recipe.evaluate_mtp import tokens_a_step  # noqa: E402
from models.recipe.forward import hidden_and_balance  # noqa: E402
from models.recipe.train_mtp import loss_of  # noqa: E402

HIDDEN = 256


@pytest.fixture
def draft() -> mtp.Draft:
    torch.manual_seed(0)
    config = transformers.Qwen3_5MoeTextConfig(**{**CONFIG, "initializer_range": 0.06})
    return mtp.Draft(config).eval()


@torch.no_grad()
def test_forward_is_causal(draft: mtp.Draft) -> None:
    embedded, hidden = torch.randn(2, 2, 12, HIDDEN)
    before = draft(embedded, hidden)
    for changed in (embedded, hidden):
        changed[:, 7] += 1.0
        after = draft(embedded, hidden)
        torch.testing.assert_close(after[:, :7], before[:, :7])
        assert (after[:, 7:] - before[:, 7:]).abs().amax(-1).min() > 1e-4
        changed[:, 7] -= 1.0


@torch.no_grad()
def test_chain_is_the_forward_with_rows_of_its_own(draft: mtp.Draft) -> None:
    embedded, hidden = torch.randn(2, 2, 10, HIDDEN)
    items, _ = draft.chain(embedded, hidden, 3)
    torch.testing.assert_close(items[0], draft(embedded, hidden), atol=1e-5, rtol=1e-4)
    for t in (0, 3, 7):
        rows = hidden[:, : t + 1]
        for k in range(3):
            m = draft(embedded[:, : t + 1 + k], rows)
            torch.testing.assert_close(items[k][:, t], m[:, -1], atol=1e-5, rtol=1e-4)
            rows = torch.cat([rows, m[:, -1:]], dim=1)


@torch.no_grad()
def test_experts_and_attention_are_those_of_transformers(draft: mtp.Draft) -> None:
    embedded, hidden = torch.randn(2, 2, 10, HIDDEN)
    x = draft.joined(embedded, hidden)
    mask = torch.full((10, 10), -torch.inf).triu(1)[None, None]
    theirs = draft.layers[0](x, position_embeddings=draft.rotary(embedded), attention_mask=mask)
    theirs = draft.norm(theirs[0] if isinstance(theirs, tuple) else theirs)
    torch.testing.assert_close(draft(embedded, hidden), theirs, atol=1e-4, rtol=1e-3)


def test_stored_beside_a_model_that_transformers_and_the_engine_load(
    draft: mtp.Draft, tmp_path: Path
) -> None:
    from engine.loading.checkpoint import read_entries

    config = transformers.Qwen3_5MoeTextConfig(**CONFIG)
    model = transformers.Qwen3_5MoeForCausalLM(config)
    save(model, tmp_path)
    add_draft(mtp.stored(draft), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        names = {name for name in file.keys() if name.startswith("mtp.")}  # noqa: SIM118
        assert file.get_tensor("mtp.fc.weight").shape == (HIDDEN, 2 * HIDDEN)
        assert file.get_tensor("mtp.layers.0.mlp.experts.7.up_proj.weight").shape == (64, HIDDEN)
    assert {"mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight"} <= names
    assert not [entry for entry in read_entries(tmp_path) if "mtp" in entry.name]
    loaded, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert loaded.config.mtp_num_hidden_layers == 1
    back = mtp.load(tmp_path).state_dict()
    for name, tensor in draft.state_dict().items():
        torch.testing.assert_close(back[name], tensor.bfloat16().float(), msg=name)


def test_loss_reaches_the_draft_layer_only() -> None:
    torch.manual_seed(0)
    config = transformers.Qwen3_5MoeTextConfig(**CONFIG)
    trunk = transformers.Qwen3_5MoeForCausalLM(config).float().requires_grad_(False)
    draft = mtp.Draft(config)
    ids, weights = torch.randint(0, 1300, (2, 64)), torch.ones(2, 64)
    loss, rates = loss_of(trunk, draft, ids, weights)
    loss.backward()
    assert rates.shape == (3,)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in draft.parameters())
    assert all(p.grad is None for p in trunk.parameters())
    assert hidden_and_balance(trunk, ids)[0].shape == (2, 64, HIDDEN)


def test_tokens_a_step_walks_the_accepted_drafts() -> None:
    right = torch.tensor([[True, False, True], [True, True, True], [False] * 3, [True] * 3])
    assert tokens_a_step(right, 1) == 5 / 3  # steps behind tokens 0, 2 and 3
    assert tokens_a_step(torch.zeros(6, 3, dtype=torch.bool), 3) == 1.0
