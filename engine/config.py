"""Settings of an engine: frozen, checked once, resolved against the device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch

from engine.sampling.acceptance_setting import require_draft_acceptance
from engine.spread.shapes import GROUP_SIZES
from transport.wire.layout import CHUNK_ALIGNMENT, CacheDtype

MAX_DECODE_ROWS = 512
"""The most sequences of a decode step on CUDA: its kernels' scratch memory has this size."""

DECODE_BUCKETS = (
    1, 2, 4, 8, 11, 16, 21, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256,
    320, 384, 448, MAX_DECODE_ROWS,
)  # fmt: skip
"""Row counts of the decode steps captured on CUDA; a step runs in the smallest that holds it."""

MAX_DRAFTS = 4
"""The most drafts of a sequence in one step."""

MAX_VERIFIED_TOKENS = 512
"""The most tokens of a decode step with drafts on CUDA; with more sequences drafts do not pay."""

SAMPLED_AT_ONCE = 64
"""Rows sampled together on CUDA if sampling takes temporaries of all ids."""

PROMPT_TOKENS = 8192
"""Prompt tokens of the largest pass on CUDA, unless a worker is told to compute fewer at a time."""

MIN_PAGE_SIZE = 16
"""The fewest tokens of a page on CUDA: a side of the smallest product on tensor cores."""

_ROWS = range(1, MAX_DECODE_ROWS + 1)

LoadFormat = Literal["auto", "dummy"]
Dtype = Literal["auto", "float32", "bfloat16"]
Quantize = Literal["none", "fp8", "fp8-lm-head", "nvfp4", "nvfp4-lm-head", "dequantize"]
Device = Literal["cpu", "cuda"]
Overlap = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class EngineConfig:
    """Settings of one engine; a bad one raises ValueError naming the setting.

    ``load_format`` dummy draws weights from ``seed`` instead of reading tensors (the folder then
    needs only ``config.json``). ``dtype`` auto is float32 on the CPU, bfloat16 on CUDA.
    ``num_valid_ids``: ids from here on are padding of the vocabulary and are never sampled; None:
    the tokenizer fills the vocabulary. ``num_pages`` and ``num_state_slots`` None: as many as fit
    on the GPU beside the weights; ``gpu_share``: how many workers divide the GPU's memory;
    ``gpu_memory``: GiB of it that count, as if the GPU had no more; None: all.
    ``max_prompt_tokens``: the most prompt tokens of a pass, for which memory is kept free.
    ``prompts_apart``: no pass has prompts and decode rows, which changes the bits of both.
    ``poison`` fills all cache memory with NaN at the start, so that a read before a write shows in
    the logits. ``decodes`` False: the engine computes prompts and first tokens only, and spends no
    time and memory on making decode steps fast; ``prefills`` False: the other way round. Both still
    compute the other kind of batch, by kernels that the warm-up has compiled, but no graph of it is
    captured: the host enqueues each pass kernel by kernel. ``max_drafts``: tokens that a decode
    step may guess for each sequence with the checkpoint's draft layer; 0 leaves that layer out, as
    does a checkpoint that has none. ``spread``: decode steps can be computed together with other
    engines of the node, on CUDA; the ring of each state slot then has an entry more than drafts.
    ``draft_acceptance``: probability with which each draft is accepted, whatever the model chooses
    (sampling/given_acceptance.py), for benchmarks with dummy weights; None: drafts are verified.
    ``decode_buckets``, ascending: rows of the decode steps that are captured on CUDA, beside one
    with a row for each state slot. ``group_sizes``: decoding members of the groups that captured
    spread steps are for. A start takes less time with fewer of either. ``any_role``: an engine that
    decodes can also lend to the spread steps of others. ``overlap``: long prompts are computed
    beside decode steps, on CUDA, by an engine that does both and does not spread its steps; auto:
    where that can be done, on: or else the start fails.
    """

    model_dir: Path
    num_pages: int | None
    num_state_slots: int | None
    page_size: int = 64
    load_format: LoadFormat = "auto"
    dtype: Dtype = "auto"
    quantize: Quantize = "none"
    device: Device = "cpu"
    seed: int = 0
    poison: bool = False
    num_valid_ids: int | None = None
    gpu_share: int = 1
    gpu_memory: float | None = None
    max_prompt_tokens: int = PROMPT_TOKENS
    prompts_apart: bool = False
    decodes: bool = True
    prefills: bool = True
    max_drafts: int = 0
    draft_acceptance: float | None = None
    spread: bool = False
    any_role: bool = False
    overlap: Overlap = "off"
    decode_buckets: tuple[int, ...] = DECODE_BUCKETS
    group_sizes: tuple[int, ...] = GROUP_SIZES

    @property
    def spreads(self) -> bool:
        """True if there are spread steps with these settings."""
        return self.spread and self.device == "cuda" and self.decodes

    @property
    def lends(self) -> bool:
        """True if the engine takes part in others' spread steps without sequences of its own."""
        wanted = self.any_role or not self.decodes
        return self.spread and self.device == "cuda" and wanted

    def __post_init__(self) -> None:
        _one_of("load_format", self.load_format, ("auto", "dummy"))
        _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16"))
        _one_of("quantize", self.quantize, get_args(Quantize))
        _one_of("device", self.device, ("cpu", "cuda"))
        _one_of("overlap", self.overlap, get_args(Overlap))
        if self.overlap == "on" and self.device == "cpu":
            raise ValueError("overlap: on divides a GPU, and the device is cpu")
        for name in ("num_pages", "num_state_slots", "page_size", "gpu_share", "gpu_memory"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value} is not at least 1")
        for name in ("num_pages", "num_state_slots"):
            if getattr(self, name) is None and self.device == "cpu":
                raise ValueError(f"{name}: must be given on the CPU")
        if not 0 <= self.max_drafts <= MAX_DRAFTS:
            raise ValueError(f"max_drafts: {self.max_drafts} is not from 0 to {MAX_DRAFTS}")
        if (given := self.draft_acceptance) is not None:
            require_draft_acceptance(given, self.load_format, drafts=self.max_drafts > 0)
        if CHUNK_ALIGNMENT % self.page_size:
            raise ValueError(f"page_size: {self.page_size} does not divide {CHUNK_ALIGNMENT}")
        if self.device == "cuda" and self.page_size < MIN_PAGE_SIZE:
            raise ValueError(
                f"page_size: {self.page_size} is below the {MIN_PAGE_SIZE} tokens that the "
                f"kernels on CUDA take at a time"
            )
        slots = self.num_state_slots or 0
        if self.device == "cuda" and self.decodes and slots > MAX_DECODE_ROWS:
            raise ValueError(
                f"num_state_slots: {slots} exceeds the {MAX_DECODE_ROWS} sequences "
                f"of the largest decode step on CUDA"
            )
        buckets = self.decode_buckets
        if list(buckets) != sorted(set(buckets)) or not set(buckets) <= set(_ROWS):
            raise ValueError(
                f"decode_buckets: {buckets} do not ascend from 1 to at most {MAX_DECODE_ROWS}"
            )
        if not set(self.group_sizes) <= set(GROUP_SIZES):
            raise ValueError(f"group_sizes: {self.group_sizes} are not all of {GROUP_SIZES}")
        if self.num_valid_ids is not None and self.num_valid_ids < 1:
            raise ValueError(f"num_valid_ids: {self.num_valid_ids} is not at least 1")

    @property
    def kv_dtype(self) -> CacheDtype:
        """The compute dtype's name, which the KV pages and conv states share."""
        if self.dtype != "auto":
            return self.dtype
        return "float32" if self.device == "cpu" else "bfloat16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self.kv_dtype == "float32" else torch.bfloat16


def step_tokens(num_rows: int, max_drafts: int) -> int:
    """The most tokens of a decode step of ``num_rows`` sequences."""
    num_rows = min(num_rows, MAX_DECODE_ROWS)
    verified = num_rows * (1 + max_drafts) if max_drafts else 0
    return max(num_rows, min(verified, MAX_VERIFIED_TOKENS))


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: {value!r} is not one of {', '.join(allowed)}")
