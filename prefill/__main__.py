"""``python -m prefill``: one prefill worker."""

import gc

gc.disable()  # until options.run_service: nothing that imports make is garbage

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from engine.runner import Engine
from prefill.scheduler import PrefillLimits
from prefill.worker import PrefillWorker
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
    offer_ttl: Annotated[
        float, typer.Option(envvar="BATON_OFFER_TTL", help="Seconds an offer may wait.")
    ] = 600.0,
    verify_handoff: options.VerifyHandoff = False,
    lookahead: options.Lookahead = None,
    threads: options.Threads = 0,
    host_workers: options.HostWorkers = 1,
    drain_timeout: options.DrainTimeout = 30.0,
    stall_timeout: options.StallTimeout = 60.0,
    poison: options.Poison = False,
    log_level: options.LogLevel = "info",
    log_json: options.LogJson = False,
) -> None:
    """Compute prompts and offer their cache to decode workers."""

    def run() -> None:
        if offer_ttl <= 0:
            raise ValueError(f"offer_ttl: {offer_ttl} is not positive")
        engine_config = options.engine_config(
            model, load_format, device, dtype, page_size, num_pages, num_state_slots, poison,
            gpu_share, quantize, decodes=False,
        )  # fmt: skip
        tokens = options.batch_tokens_on(engine_config.device, max_batch_tokens)
        limits = PrefillLimits(tokens, max_batch_rows)
        settings = options.worker_settings(
            coordinator, engine_config, lookahead, threads, host_workers, drain_timeout, device,
            gpu, claim_timeout, stall_timeout,
        )  # fmt: skip

        def make_pool(engine: Engine, session: Session, instance: str) -> PrefillWorker:
            return PrefillWorker(
                engine,
                session,
                instance,
                limits,
                offer_ttl_s=offer_ttl,
                lookahead=settings.lookahead,
                verify_handoff=verify_handoff,
            )

        serve("prefill", settings, make_pool)

    options.run_service("prefill", log_level, log_json, run)


if __name__ == "__main__":
    sys.exit(run_command("prefill", main, sys.argv[1:], os.environ))
