"""A model's configuration, read from a checkpoint's ``config.json``."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from engine.model.quantization import Quantization
from transport.wire.layout import CacheDtype, CacheLayout

LayerType = Literal["linear_attention", "full_attention"]
SUPPORTED = ("qwen3_5_moe", "qwen3_5_moe_text")


@dataclass(frozen=True)
class ModelConfig:
    """Dimensions of a Qwen3.5 mixture-of-experts text model; names follow the checkpoint.

    Source: ``config.json``, its ``text_config`` when the checkpoint is multimodal.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layer_types: tuple[LayerType, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rotary_dim: int
    linear_conv_kernel_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    tie_word_embeddings: bool
    quantization: Quantization
    num_mtp_layers: int
    """1 if the checkpoint has a draft layer (multi-token prediction) and it is used, else 0."""

    @classmethod
    def read(cls, folder: Path) -> "ModelConfig":
        """Read ``folder``'s config; a ValueError names what is missing, wrong or unsupported."""
        raw = _read_config(folder)
        model_type = raw.get("model_type")
        if model_type not in SUPPORTED:
            raise ValueError(
                f"model_type: {folder / 'config.json'} is {model_type!r} "
                f"({', '.join(map(str, raw.get('architectures') or ['no architectures']))}); "
                f"supported: {', '.join(SUPPORTED)}"
            )
        text = raw if model_type == "qwen3_5_moe_text" else raw.get("text_config")
        if not isinstance(text, dict):
            raise ValueError(f"text_config: {folder / 'config.json'} has none")
        return cls._from_text(_Fields(text, folder), outer=raw)

    @classmethod
    def _from_text(cls, text: "_Fields", *, outer: dict[str, Any]) -> "ModelConfig":
        text.must_be("hidden_act", "silu")
        text.must_be("attention_bias", False)
        text.must_be("attn_output_gate", True)
        text.must_be("norm_topk_prob", True)
        text.must_be("mtp_use_dedicated_embeddings", False)
        rope = _Fields(text.mapping("rope_parameters"), text.folder, within="rope_parameters.")
        rope.must_be("rope_type", "default")
        head_dim = text.positive("head_dim")
        rotary_dim = int(head_dim * rope.number("partial_rotary_factor"))
        if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
            raise ValueError(
                f"rope_parameters.partial_rotary_factor: rotates {rotary_dim} of {head_dim} dims"
            )
        config = cls(
            model_type=str(outer["model_type"]),
            vocab_size=text.positive("vocab_size"),
            hidden_size=text.positive("hidden_size"),
            layer_types=text.layer_types(),
            num_attention_heads=text.positive("num_attention_heads"),
            num_key_value_heads=text.positive("num_key_value_heads"),
            head_dim=head_dim,
            max_position_embeddings=text.positive("max_position_embeddings"),
            rms_norm_eps=text.number("rms_norm_eps"),
            rope_theta=rope.number("rope_theta"),
            rotary_dim=rotary_dim,
            linear_conv_kernel_dim=text.positive("linear_conv_kernel_dim"),
            linear_num_key_heads=text.positive("linear_num_key_heads"),
            linear_num_value_heads=text.positive("linear_num_value_heads"),
            linear_key_head_dim=text.positive("linear_key_head_dim"),
            linear_value_head_dim=text.positive("linear_value_head_dim"),
            num_experts=text.positive("num_experts"),
            num_experts_per_tok=text.positive("num_experts_per_tok"),
            moe_intermediate_size=text.positive("moe_intermediate_size"),
            shared_expert_intermediate_size=text.positive("shared_expert_intermediate_size"),
            tie_word_embeddings=bool(
                outer.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
            ),
            quantization=Quantization.read(
                outer.get("quantization_config", text.get("quantization_config", None)),
                text.folder,
            ),
            num_mtp_layers=min(1, text.count("mtp_num_hidden_layers")),
        )
        config._check()
        return config

    def _check(self) -> None:
        for whole, part in (
            ("num_attention_heads", "num_key_value_heads"),
            ("linear_num_value_heads", "linear_num_key_heads"),
        ):
            if getattr(self, whole) % getattr(self, part):
                raise ValueError(
                    f"{whole}: {getattr(self, whole)} is not a multiple of "
                    f"{part} {getattr(self, part)}"
                )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok: {self.num_experts_per_tok} of {self.num_experts} experts"
            )
        if self.linear_conv_kernel_dim < 2:
            raise ValueError(f"linear_conv_kernel_dim: {self.linear_conv_kernel_dim} is below 2")

    @property
    def key_dim(self) -> int:
        """Channels of all DeltaNet keys (and of all queries)."""
        return self.linear_num_key_heads * self.linear_key_head_dim

    @property
    def value_dim(self) -> int:
        """Channels of all DeltaNet values."""
        return self.linear_num_value_heads * self.linear_value_head_dim

    @property
    def conv_channels(self) -> int:
        """Channels of the causal conv: [q | k | v]."""
        return 2 * self.key_dim + self.value_dim

    def quantised(self) -> "ModelConfig":
        """The same model with its large matrices in FP8; no change for a quantised model."""
        if self.quantization.source != "none":
            return self
        return replace(self, quantization=Quantization.at_load())

    def without_drafts(self) -> "ModelConfig":
        """The same model without its draft layer."""
        return replace(self, num_mtp_layers=0)

    def cache_layout(self, kv_dtype: CacheDtype, page_size: int) -> CacheLayout:
        """Shape of this model's pages and state slots; a draft layer's KV comes last in a page."""
        return CacheLayout(
            kv_dtype=kv_dtype,
            page_size=page_size,
            num_attention_layers=self.layer_types.count("full_attention") + self.num_mtp_layers,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            num_deltanet_layers=self.layer_types.count("linear_attention"),
            conv_channels=self.conv_channels,
            conv_state_len=self.linear_conv_kernel_dim - 1,
            num_v_heads=self.linear_num_value_heads,
            k_dim=self.linear_key_head_dim,
            v_dim=self.linear_value_head_dim,
        )


@dataclass(frozen=True)
class _Fields:
    """A JSON object whose reads fail with the setting's name and file."""

    values: dict[str, Any]
    folder: Path
    within: str = ""

    def get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def _need(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            raise ValueError(f"{self.within}{name}: missing in {self.folder / 'config.json'}")
        return value

    def positive(self, name: str) -> int:
        value = self._need(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.within}{name}: {value!r} is not a positive integer")
        return value

    def count(self, name: str) -> int:
        """A non-negative integer; 0 if it is absent."""
        value = self.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{self.within}{name}: {value!r} is not a count")
        return value

    def number(self, name: str) -> float:
        value = self._need(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ValueError(f"{self.within}{name}: {value!r} is not a positive number")
        return float(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._need(name)
        if not isinstance(value, dict):
            raise ValueError(f"{self.within}{name}: {value!r} is not an object")
        return value

    def must_be(self, name: str, only: object) -> None:
        """Check a field for the only value that this engine supports; absent means that value."""
        value = self.get(name, only)
        if value != only:
            raise ValueError(f"{self.within}{name}: {value!r}; only {only!r} is supported")

    def layer_types(self) -> tuple[LayerType, ...]:
        num_layers = self.positive("num_hidden_layers")
        listed = self.values.get("layer_types")
        if listed is None:
            every = self.positive("full_attention_interval")
            return tuple(
                "linear_attention" if (i + 1) % every else "full_attention"
                for i in range(num_layers)
            )
        unknown = set(listed) - {"linear_attention", "full_attention"}
        if unknown or len(listed) != num_layers:
            raise ValueError(
                f"layer_types: {len(listed)} entries for {num_layers} layers, "
                f"of unknown type: {sorted(unknown) or 'none'}"
            )
        return tuple(listed)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        what = "no config.json in it" if folder.is_dir() else "no such folder"
        raise ValueError(f"model_dir: {folder}: {what}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"model_dir: {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"model_dir: {path} holds a {type(value).__name__}, not an object")
    return value
