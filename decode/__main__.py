"""``python -m decode``: one decode worker."""

import gc

gc.disable()  # until options.run_service: nothing that imports make is garbage

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from decode.worker import DecodeWorker
from engine.runner import Engine
from telemetry.last_words import run_command
from transport.copy.memory import copy_stream
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
    pull_timeout: Annotated[
        float,
        typer.Option(
            envvar="BATON_PULL_TIMEOUT", help="Seconds that a copy, and the room for it, may take."
        ),
    ] = 10.0,
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
    """Pull finished prompts from prefill workers and decode them."""

    def run() -> None:
        if pull_timeout <= 0:
            raise ValueError(f"pull_timeout: {pull_timeout} is not positive")
        engine_config = options.engine_config(
            model, load_format, device, dtype, page_size, num_pages, num_state_slots, poison,
            gpu_share, quantize, prefills=False,
        )  # fmt: skip
        settings = options.worker_settings(
            coordinator, engine_config, lookahead, threads, host_workers, drain_timeout, device,
            gpu, claim_timeout, stall_timeout,
        )  # fmt: skip

        def make_pool(engine: Engine, session: Session, instance: str) -> DecodeWorker:
            return DecodeWorker(
                engine,
                session,
                copy_stream(engine.config.device, engine.cache, poisoned=poison),
                pull_timeout_s=pull_timeout,
                lookahead=settings.lookahead,
                verify_handoff=verify_handoff,
            )

        serve("decode", settings, make_pool)

    options.run_service("decode", log_level, log_json, run)


if __name__ == "__main__":
    sys.exit(run_command("decode", main, sys.argv[1:], os.environ))
