"""Loads what an engine computes with: weights, cache, kernels and grammars.

The tokenizer is read, and kernels are compiled, while the weights are loaded.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from engine import gpu
from engine.cache.pool_sizes import BufferFactory, sized_cache
from engine.config import EngineConfig, step_tokens
from engine.kernels.choice import Ahead, kernels_ahead, kernels_for
from engine.kernels.interface import Kernels
from engine.kernels.triton_support import spread_problem
from engine.loading import checkpoint, weights
from engine.loading.checkpoint import Entry
from engine.loading.model_folder import read_model
from engine.loading.phases import Phases
from engine.model.config import ModelConfig
from engine.model.model import Model
from engine.model.registry import build
from engine.sampling.grammars import Grammars, grammars_of
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize
from transport.wire.spread import MAX_ROWS

log = logging.getLogger(__name__)

TOKENIZER_S = 120.0
"""The longest wait for the tokenizer."""


@dataclass(frozen=True)
class Loaded:
    """The parts of an engine. ``config``: the settings, as far as the model can have them.
    ``ahead``: the kernels that were compiled meanwhile."""

    config: EngineConfig
    model: Model
    cache: CacheTensors
    layout: CacheLayout
    pools: PoolSize
    fingerprint: str
    kernels: Kernels
    grammars: Grammars | None
    ahead: Ahead


def load(
    config: EngineConfig,
    buffer_factory: BufferFactory,
    phases: Phases,
    *,
    progress: weights.Progress | None = None,
    kernels: Kernels | None = None,
) -> Loaded:
    """Read the model of ``config.model_dir`` and lay the cache over a buffer. ``kernels``: instead
    of those that are chosen for the model. Raises as ``Engine.load``."""
    model_config, entries = read_model(config)
    config = _possible(config, model_config)
    max_drafts = config.max_drafts if model_config.num_mtp_layers and config.decodes else 0
    layout = model_config.cache_layout(config.kv_dtype, config.page_size)
    weight_bytes = build(model_config, config.torch_dtype, torch.device("meta")).num_bytes
    is_small = model_config.quantization.source != "none" or model_config.quantization.packs
    if config.device == "cuda":
        advice = "" if is_small else "; --quantize fp8 halves the weights"
        gpu.require_gpu(weight_bytes, gpu.GpuPart.of(config), advice, quantised=is_small)
    num_ids = config.num_valid_ids or model_config.vocab_size
    what = model_config, config.kv_dtype, layout, config.decodes, config.prefills, max_drafts
    in_groups = config.spreads, config.lends
    ahead = kernels_ahead(config.device, model_config, (*what, *in_groups), spreads=any(in_groups))
    grammars = _read_aside(config, num_ids)
    phases.ended("checks")
    model, fingerprint = _model(config, model_config, entries, progress)
    phases.ended("weights")
    pools, cache = sized_cache(config, model_config, layout, num_ids, max_drafts, buffer_factory)
    log.info("memory: %s", gpu.memory_plan(weight_bytes, layout, pools))
    if config.num_state_slots is None and (short := gpu.shortage(layout, pools, small=is_small)):
        log.warning("memory: %s", short)
    cache.epochs.zero_()
    phases.ended("cache")
    most = step_tokens(pools.num_state_slots, max_drafts)
    if config.spreads:  # padding included, which is the same for all members
        most = max(most, MAX_ROWS)
    kernels = kernels or kernels_for(model_config, config.torch_dtype, config.device, most)
    ahead.wait()
    phases.ended("kernels compiled ahead")
    tokenizer = grammars.result(TOKENIZER_S)
    phases.ended("tokenizer")
    return Loaded(config, model, cache, layout, pools, fingerprint, kernels, tokenizer, ahead)


def _possible(config: EngineConfig, model: ModelConfig) -> EngineConfig:
    """``config`` without what the model cannot have. Raises ValueError for what must not be left
    out."""
    if config.draft_acceptance is not None and not model.num_mtp_layers:
        raise ValueError("draft_acceptance: the checkpoint has no draft layer (mtp.*)")
    if (config.spreads or config.lends) and (problem := spread_problem(model)):
        log.info("spread: all steps are computed locally, because of %s", problem)
        return replace(config, spread=False)
    return config


def _read_aside(config: EngineConfig, num_ids: int) -> Future[Grammars | None]:
    """Read the tokenizer in a thread."""
    aside = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
    found = aside.submit(grammars_of, config.model_dir, num_ids)
    aside.shutdown(wait=False)
    return found


def _model(
    config: EngineConfig,
    model_config: ModelConfig,
    entries: list[Entry],
    progress: weights.Progress | None,
) -> tuple[Model, str]:
    """The model with its weights, and its fingerprint."""
    model = build(model_config, config.torch_dtype, torch.device(config.device))
    if config.load_format == "dummy":
        weights.draw(model.plan, config.seed)
        drawn = model_config, "dummy", config.seed, config.draft_acceptance
        fingerprint = checkpoint.fingerprint(drawn, [])
    else:
        weights.load(model.plan, entries, progress, stored=model_config.stored)
        fingerprint = checkpoint.fingerprint(model_config, entries)
    model.prepare()
    return model, fingerprint
