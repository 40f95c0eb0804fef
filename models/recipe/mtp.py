"""The draft layer for multi-token prediction (MTP), in the layout of Qwen3.5's checkpoints.

Row t takes the trunk's hidden state h_t and the token x_{t+1}, and predicts x_{t+2}:

    m_t = norm(layer(fc(cat[pre_fc_norm_embedding(embed(x_{t+1})), pre_fc_norm_hidden(h_t)])))
    logits of x_{t+2} = lm_head(m_t)

- The embedding comes first in the concatenation. Embedding and lm_head are the trunk's.
- h_t is the trunk's output after its final norm, what its lm_head reads (so vLLM's
  qwen3_next_mtp.py and qwen3_5_mtp.py; llama.cpp measured more acceptance with it than with the
  state before the norm, pull request 24025).
- The layer is a full-attention layer with a sparse block; row t has rotary position t, and sees
  the rows 0 to t.
- Draft k + 1 comes from one more row at position t + k with m (behind `norm`) of the row before in
  place of h, and draft k for its token. Once the tokens are verified, their rows are computed
  again from the trunk's hidden states.

This is plain PyTorch over whole sequences, with nothing taken from the engine, whose tests take it
for the truth.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

from models.recipe.forward import experts, heads_of, one_layer

PREFIX = "mtp."


class Draft(nn.Module):
    """The parameters, named as in a checkpoint behind `mtp.` (but with the experts fused)."""

    def __init__(self, config: Qwen3_5MoeTextConfig) -> None:
        super().__init__()
        values = {**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]}
        inner = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**values)).float().model
        hidden = config.hidden_size
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        nn.init.normal_(self.fc.weight, std=config.initializer_range)
        self.layers = inner.layers
        self.norm = inner.norm
        self.pre_fc_norm_embedding = type(inner.norm)(hidden, eps=config.rms_norm_eps)
        self.pre_fc_norm_hidden = type(inner.norm)(hidden, eps=config.rms_norm_eps)
        self.rotary_emb = inner.rotary_emb

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The input of the layer, from two tensors [batch, rows, hidden]."""
        parts = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        return self.fc(torch.cat(parts, dim=-1)).to(embedded.dtype)

    def rotary(self, x: Tensor, begin: int = 0) -> tuple[Tensor, Tensor]:
        """cos and sin for the rows of `x`, the first at position `begin`."""
        positions = torch.arange(begin, begin + x.shape[1], device=x.device)
        return self.rotary_emb(x, positions.expand(3, x.shape[0], -1))

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """m of [batch, rows, hidden]; row t takes `embedded[:, t]`, that of token t + 1, and
        `hidden[:, t]`, the trunk's (or m of the row before, where a chain drafts on)."""
        cos, sin = self.rotary(embedded)
        x, _ = one_layer("full_attention", self.layers[0], self.joined(embedded, hidden), cos, sin)
        return self.norm(x)

    def chain(self, embedded: Tensor, hidden: Tensor, depth: int) -> tuple[list[Tensor], Tensor]:
        """m of the first `depth` drafts behind every token, and the load-balancing loss.

        Row t of item k has taken token t + 1 + k at position t + k and predicts token t + 2 + k;
        item k is k rows shorter than `hidden`. The row sees rows 0 to t of item 0, whose states
        are the trunk's, and row t of the items after it: what the last of the rows in a call of
        `forward` would see.
        """
        layer = self.layers[0]
        keys: list[Tensor] = []
        values: list[Tensor] = []
        out: list[Tensor] = []
        balances: list[Tensor] = []
        for k in range(depth):
            rows = hidden.shape[1] - k
            inputs = embedded[:, k:]
            x = self.joined(inputs, out[-1][:, :rows] if out else hidden)
            query, key, value, gate = heads_of(
                layer.self_attn, layer.input_layernorm(x), *self.rotary(inputs, begin=k)
            )
            keys = [*(past[:, :, :rows] for past in keys), key]
            values = [*(past[:, :, :rows] for past in values), value]
            own = torch.eye(rows, dtype=torch.bool, device=x.device)
            seen = torch.cat([own.new_ones(rows, rows).tril(), *[own] * k], dim=1)
            mixed = F.scaled_dot_product_attention(
                query, torch.cat(keys, dim=2), torch.cat(values, dim=2), attn_mask=seen
            )
            mixed = mixed.transpose(1, 2) * gate.sigmoid()
            x = x + layer.self_attn.o_proj(mixed.flatten(2))
            routed, balance = experts(layer.mlp, layer.post_attention_layernorm(x))
            out.append(self.norm(x + routed))
            balances.append(balance)
        return out, torch.stack(balances).mean()


def stored(draft: Draft) -> dict[str, Tensor]:
    """The tensors of a checkpoint: names with `mtp.`, BF16, experts one by one."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in draft.state_dict().items():
        if name.endswith("experts.gate_up_proj"):
            for i, both in enumerate(tensor):
                gate, up = both.chunk(2)
                expert = f"{name.removesuffix('gate_up_proj')}{i}."
                tensors |= {f"{expert}gate_proj.weight": gate, f"{expert}up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for i, down in enumerate(tensor):
                tensors[f"{name.removesuffix('down_proj')}{i}.down_proj.weight"] = down
        else:
            tensors[name] = tensor
    return {
        PREFIX + name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in tensors.items()
    }


def load(folder: Path) -> Draft:
    """The draft layer of a checkpoint folder, in FP32. KeyError when it has none."""
    config = Qwen3_5MoeTextConfig.from_pretrained(folder)
    draft = Draft(config)
    with safe_open(folder / "model.safetensors", "pt") as file:

        def read(name: str) -> Tensor:
            try:
                return file.get_tensor(PREFIX + name).float()
            except SafetensorError as error:
                raise KeyError(f"{folder} has no tensor {PREFIX}{name}") from error

        def experts_of(prefix: str, *parts: str) -> Tensor:
            return torch.stack(
                [
                    torch.cat([read(f"{prefix}{i}.{part}.weight") for part in parts])
                    for i in range(config.num_experts)
                ]
            )

        state = {}
        for name in draft.state_dict():
            if name.endswith("experts.gate_up_proj"):
                prefix = name.removesuffix("gate_up_proj")
                state[name] = experts_of(prefix, "gate_proj", "up_proj")
            elif name.endswith("experts.down_proj"):
                state[name] = experts_of(name.removesuffix("down_proj"), "down_proj")
            else:
                state[name] = read(name)
    draft.load_state_dict(state)
    return draft.eval()
