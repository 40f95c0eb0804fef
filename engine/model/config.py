"""The configuration of a model of any family: its layers as data."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engine.model.fields import Fields
from engine.model.layers import Attention, DeltaNet, LayerSpec, Moe
from engine.model.quantization import PackedNames, Quantization
from engine.quantized.format import PLAIN, Stored
from engine.quantized.read import FP8_BLOCKS, read_quantization
from transport.wire.layout import CacheDtype, CacheLayout

T = TypeVar("T", DeltaNet, Moe)

MIN_WINDOWS = 4
"""How many times as long as a window the longest sequence must be for window pages: below that,
rings in all state slots would save too little."""


@dataclass(frozen=True)
class ModelConfig:
    """What a model computes; names follow the checkpoint.

    All attention layers have the same heads, and all DeltaNet layers are alike: ``cache_layout``
    has one kind of each. ``plus_one_norms``: the checkpoint stores ``w`` of norms that multiply by
    ``1 + w``. ``embedding_scale``: what embeddings are multiplied by.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    plus_one_norms: bool
    quantization: Quantization
    stored: Stored = PLAIN
    """How the checkpoint stores matrices that become plain weights."""
    embedding_scale: float = 1.0
    num_mtp_layers: int = 0
    """1 if the checkpoint has a draft layer (multi-token prediction) and it is used, else 0."""

    @classmethod
    def of(
        cls,
        text: Fields,
        outer: dict[str, Any],
        layers: tuple[LayerSpec, ...],
        *,
        plus_one_norms: bool = False,
        embedding_scale: float = 1.0,
        num_mtp_layers: int = 0,
    ) -> "ModelConfig":
        """The configuration with these layers; ``text`` has the other fields, and ``outer`` is the
        whole file."""
        quantization, stored = read_quantization(
            outer.get("quantization_config", text.get("quantization_config", None)), text.folder
        )
        return cls(
            model_type=str(outer["model_type"]),
            vocab_size=text.positive("vocab_size"),
            hidden_size=text.positive("hidden_size"),
            layers=layers,
            max_position_embeddings=text.positive("max_position_embeddings"),
            rms_norm_eps=text.number("rms_norm_eps"),
            tie_word_embeddings=bool(
                outer.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
            ),
            plus_one_norms=plus_one_norms,
            embedding_scale=embedding_scale,
            quantization=quantization,
            stored=stored,
            num_mtp_layers=num_mtp_layers,
        )

    def __post_init__(self) -> None:
        heads = {
            (mixer.num_attention_heads, mixer.num_key_value_heads, mixer.head_dim)
            for mixer in self._mixers
            if isinstance(mixer, Attention)
        }
        assert len(heads) == 1, f"{self.model_type}: attention layers with heads {heads}"

    @property
    def _mixers(self) -> list[Attention | DeltaNet]:
        return [layer.mixer for layer in self.layers]

    @property
    def attention(self) -> Attention:
        """The attention of this model's first attention layer; the others have the same heads."""
        return next(mixer for mixer in self._mixers if isinstance(mixer, Attention))

    @property
    def deltanet(self) -> DeltaNet:
        """The DeltaNet of this model, which has DeltaNet layers."""
        return self._only(DeltaNet, lambda layer: layer.mixer)

    @property
    def moe(self) -> Moe:
        """The mixture of experts of this model, which has such layers."""
        return self._only(Moe, lambda layer: layer.mlp)

    @property
    def is_hybrid_moe(self) -> bool:
        """True if each layer has experts, and some layers are DeltaNet."""
        mixers = {type(layer.mixer) for layer in self.layers}
        mlps = {type(layer.mlp) for layer in self.layers}
        return mixers == {Attention, DeltaNet} and mlps == {Moe}

    @property
    def num_attention_layers(self) -> int:
        """Number of attention layers, without the draft layer."""
        return sum(isinstance(layer.mixer, Attention) for layer in self.layers)

    @property
    def mtp_layer(self) -> LayerSpec:
        """The draft layer: an attention layer with the MLP of the last layer."""
        return LayerSpec(self.attention, self.layers[-1].mlp)

    def _only(self, kind: type[T], part: Callable[[LayerSpec], object]) -> T:
        found = {spec for spec in map(part, self.layers) if isinstance(spec, kind)}
        assert len(found) == 1, f"{self.model_type}: {len(found)} kinds of {kind.__name__} layers"
        return found.pop()

    def quantised(self, *, lm_head: bool = False) -> "ModelConfig":
        """The same model with its large matrices in FP8, which is no change if they are, and on
        request ``lm_head``; a ValueError for an ``lm_head`` that is the embedding."""
        if lm_head and self.tie_word_embeddings:
            raise ValueError("quantize: fp8-lm-head: the model's lm_head is its embedding")
        found = self.quantization if self.quantization.source != "none" else Quantization.at_load()
        return replace(self, quantization=replace(found, lm_head=lm_head))

    def rounded(self, *, lm_head: bool = False) -> "ModelConfig":
        """The same model with its experts, and on request ``lm_head``, in NVFP4
        (engine/model/quantization.py); a ValueError for a quantised checkpoint, and for an
        ``lm_head`` that is the embedding."""
        if lm_head and self.tie_word_embeddings:
            raise ValueError("quantize: nvfp4-lm-head: the model's lm_head is its embedding")
        if self.quantization.source != "none" or self.stored.formats:
            name = self.stored.name if self.stored.formats else FP8_BLOCKS.name
            raise ValueError(
                f"quantize: nvfp4 needs a checkpoint that is not quantised, not {name}"
            )
        has_experts = any(isinstance(layer.mlp, Moe) for layer in self.layers)
        quantization = Quantization.nvfp4_at_load(has_experts=has_experts, lm_head=lm_head)
        return replace(self, quantization=quantization)

    def packed(self, names: PackedNames) -> "ModelConfig":
        """The same model, whose checkpoint stores these experts and matrices packed."""
        return replace(self, quantization=replace(self.quantization, packed=names))

    def packing(self) -> "ModelConfig":
        """The same model, in memory with packed weights as stored or made at load."""
        return replace(self, quantization=replace(self.quantization, packs=True))

    def dequantised(self) -> "ModelConfig":
        """The same model with all matrices in the compute dtype."""
        if self.quantization.source != "checkpoint":
            return self
        return replace(self, quantization=Quantization(), stored=FP8_BLOCKS)

    @property
    def ring_window(self) -> int | None:
        """The window of the layers that have window pages in state slots instead of a part of each
        page. None: all attention layers have a part, because none or all have a window, windows
        differ, or the window is long (MIN_WINDOWS)."""
        kinds = {mixer.window for mixer in self._mixers if isinstance(mixer, Attention)}
        windows = [window for window in kinds if window is not None]
        if len(kinds) != 2 or len(windows) != 1:
            return None
        [window] = windows
        return window if window * MIN_WINDOWS <= self.max_position_embeddings else None

    def without_drafts(self) -> "ModelConfig":
        """The same model without its draft layer."""
        return replace(self, num_mtp_layers=0)

    def cache_layout(self, kv_dtype: CacheDtype, page_size: int) -> CacheLayout:
        """Shape of this model's pages and state slots; a draft layer's KV comes last in a page.
        State slots of a model without DeltaNet layers and windows are empty."""
        attention, num_attention = self.attention, self.num_attention_layers
        num_deltanet = len(self.layers) - num_attention
        window = self.ring_window or 0
        windows = [mixer.window for mixer in self._mixers if isinstance(mixer, Attention)]
        num_windowed = windows.count(window)
        deltanet = self.deltanet if num_deltanet else None
        return CacheLayout(
            kv_dtype=kv_dtype,
            page_size=page_size,
            num_attention_layers=num_attention - num_windowed + self.num_mtp_layers,
            num_kv_heads=attention.num_key_value_heads,
            head_dim=attention.head_dim,
            num_deltanet_layers=num_deltanet,
            conv_channels=deltanet.conv_channels if deltanet else 0,
            conv_state_len=deltanet.linear_conv_kernel_dim - 1 if deltanet else 0,
            num_v_heads=deltanet.linear_num_value_heads if deltanet else 0,
            k_dim=deltanet.linear_key_head_dim if deltanet else 0,
            v_dim=deltanet.linear_value_head_dim if deltanet else 0,
            num_window_layers=num_windowed,
            window=window,
        )
