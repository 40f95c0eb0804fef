"""``python -m colocated``: one worker that prefills and decodes."""

import gc

gc.disable()  # until options.run_service: nothing that imports make is garbage

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from colocated.limits import ColocatedLimits
from colocated.worker import ColocatedWorker
from engine.runner import Engine
from prefill.scheduler import PrefillLimits
from telemetry.last_words import run_command
from transport.wire.session import Session
from worker import options
from worker.start import serve


def main(
    coordinator: options.Coordinator,
    model: options.Model = Path("models/tiny"),
    load_format: options.LoadFormat = "auto",
    device: options.Device = "auto",
    gpu: options.GpuName = "",
    gpu_share: options.GpuShare = 1,
    claim_timeout: options.ClaimTimeout = 60.0,
    dtype: options.Dtype = "auto",
    quantize: options.Quantize = "none",
    page_size: options.PageSize = 64,
    num_pages: options.NumPages = 0,
    num_state_slots: options.NumStateSlots = 0,
    max_batch_tokens: options.MaxBatchTokens = 0,
    max_batch_rows: options.MaxBatchRows = 16,
    max_tokens_beside_decode: Annotated[
        int,
        typer.Option(
            envvar="BATON_MAX_TOKENS_BESIDE_DECODE",
            help="Prompt tokens a batch while sequences are decoded: fewer for an even pace of "
            "tokens, more for prompts that are done sooner. In a burst of prompts it is off.",
        ),
    ] = 2048,
    lookahead: options.Lookahead = None,
    threads: options.Threads = 0,
    host_workers: options.HostWorkers = 1,
    drain_timeout: options.DrainTimeout = 30.0,
    stall_timeout: options.StallTimeout = 60.0,
    poison: options.Poison = False,
    log_level: options.LogLevel = "info",
    log_json: options.LogJson = False,
) -> None:
    """Compute prompts and decode them, on the same device."""

    def run() -> None:
        engine_config = options.engine_config(
            model, load_format, device, dtype, page_size, num_pages, num_state_slots, poison,
            gpu_share, quantize,
        )  # fmt: skip
        tokens = options.batch_tokens_on(engine_config.device, max_batch_tokens)
        limits = ColocatedLimits(PrefillLimits(tokens, max_batch_rows), max_tokens_beside_decode)
        settings = options.worker_settings(
            coordinator, engine_config, lookahead, threads, host_workers, drain_timeout, device,
            gpu, claim_timeout, stall_timeout,
        )  # fmt: skip

        def make_pool(engine: Engine, session: Session, instance: str) -> ColocatedWorker:
            return ColocatedWorker(engine, session, limits, lookahead=settings.lookahead)

        serve("colocated", settings, make_pool)

    options.run_service("colocated", log_level, log_json, run)


if __name__ == "__main__":
    sys.exit(run_command("colocated", main, sys.argv[1:], os.environ))
