"""Where the tables of step times of this node are kept: in the folder of Triton's cache."""

from pathlib import Path

import torch

from engine.runner import Engine
from worker.spread.kept_tables import KeptTables


def kept_tables(engine: Engine) -> KeptTables:
    """The tables of workers with this engine's GPU, model, weights, kernels and drafts."""
    from triton import knobs  # not on a machine without GPUs

    from engine.kernels.variants import current_sources

    config = engine.config
    of = (
        f"{torch.cuda.get_device_name()}, model {engine.fingerprint}, {config.kv_dtype}, "
        f"weights {engine.model_config.quantization.source}, drafts {engine.max_drafts}, "
        f"kernels {current_sources()}"
    )
    return KeptTables(Path(knobs.cache.dir), of)
