"""``baton up``: serve on this machine, in the foreground."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from decode.spread_policy import DEFAULT as SPREAD
from deploy.detached import Detached
from deploy.gpus import count_gpus
from deploy.ports import listen_at
from deploy.serve import serve
from deploy.settings import (
    TARGET_TPOT_MS,
    TARGET_TTFT_MS,
    Device,
    LoadFormat,
    Overlap,
    PoolsMode,
    Quantize,
    Role,
    Speculate,
    UpSettings,
    resolve,
)
from deploy.supervisor import StopSignals
from deploy.up_checks import check_service_settings, require_packages
from telemetry.last_words import CANNOT_START
from telemetry.listen_fds import inherited_listener
from transport.wire.errors import BatonError


def up(
    model: Annotated[
        Path | None,
        typer.Option(
            envvar="BATON_MODEL",
            readable=False,
            help="A checkpoint's folder, or the id of a model in the Hugging Face cache, such as "
            "Qwen/Qwen3.5-35B-A3B; the bundled model.",
        ),
    ] = None,
    load_format: Annotated[
        LoadFormat,
        typer.Option(envvar="BATON_LOAD_FORMAT", help="dummy: random weights."),
    ] = "auto",
    quantize: Annotated[
        Quantize,
        typer.Option(
            envvar="BATON_QUANTIZE",
            help="fp8: large matrices are converted to FP8 at load; half the memory. fp8-lm-head: "
            "lm_head too. nvfp4: experts become NVFP4, other large matrices FP8. nvfp4-lm-head: "
            "lm_head NVFP4 too. dequantize: a quantised checkpoint becomes BF16.",
        ),
    ] = "none",
    speculate: Annotated[
        Speculate,
        typer.Option(
            envvar="BATON_SPECULATE",
            help="Tokens that a decode step guesses for each sequence with the checkpoint's draft "
            "layer; auto: as many as pay.",
        ),
    ] = "auto",
    draft_acceptance: Annotated[
        float | None,
        typer.Option(
            envvar="BATON_DRAFT_ACCEPTANCE",
            help="For benchmarks with --load-format dummy: each draft is accepted with this "
            "probability, from 0 to 1.",
        ),
    ] = None,
    spread: Annotated[
        str,
        typer.Option(
            envvar="BATON_SPREAD",
            help="auto, off or N: compute decode steps of several GPUs together; auto: where it "
            "pays, N: from so many tokens of all their steps on.",
        ),
    ] = SPREAD,
    overlap: Annotated[
        Overlap,
        typer.Option(
            envvar="BATON_OVERLAP",
            help="Compute long prompts beside decode steps, each on its part of the GPU; auto: "
            "where a worker can, on: or else it does not start.",
        ),
    ] = "auto",
    prefix_cache: Annotated[
        bool,
        typer.Option(
            envvar="BATON_PREFIX_CACHE",
            help="Keep the states of prompts and answers, so that later prompts that begin like "
            "them compute only their new tokens.",
        ),
    ] = True,
    host_cache: Annotated[
        float,
        typer.Option(
            envvar="BATON_HOST_CACHE_GB",
            help="GB of pinned host memory of each prefill or colocated worker, where prefixes "
            "outlive their eviction from its GPU.",
        ),
    ] = 0.0,
    device: Annotated[
        Device, typer.Option(envvar="BATON_DEVICE", help="auto: cuda where there is a GPU.")
    ] = "auto",
    prefill: Annotated[
        int | None,
        typer.Option(envvar="BATON_PREFILL", help="Prefill workers; 2 of 8 GPUs, 1 on the CPU."),
    ] = None,
    decode: Annotated[
        int | None,
        typer.Option(envvar="BATON_DECODE", help="Decode workers; 6 of 8 GPUs, 1 on the CPU."),
    ] = None,
    role: Annotated[
        Role | None,
        typer.Option(
            envvar="BATON_ROLE",
            help="split: prefill and decode workers; colocated: every worker does both, without a "
            "handoff. Default: colocated on a single GPU, else split.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            envvar="BATON_WORKERS",
            help="Workers of --role colocated; one for each GPU, 1 on the CPU.",
        ),
    ] = None,
    pools: Annotated[
        PoolsMode | None,
        typer.Option(
            envvar="BATON_POOLS",
            help="fixed: prefill and decode workers stay what they are; manual: each can be "
            "either, and baton scale changes how many are; auto: how many are follows the load. "
            "Default: auto on several GPUs, else fixed.",
        ),
    ] = None,
    target_ttft_ms: Annotated[
        float,
        typer.Option(
            envvar="BATON_TARGET_TTFT_MS",
            help="Time to first token that requests shall keep: for --pools auto and --overlap.",
        ),
    ] = TARGET_TTFT_MS,
    target_tpot_ms: Annotated[
        float,
        typer.Option(
            envvar="BATON_TARGET_TPOT_MS",
            help="Time a token that requests shall keep: for --pools auto and --overlap.",
        ),
    ] = TARGET_TPOT_MS,
    gpu_share: Annotated[
        int,
        typer.Option(
            envvar="BATON_GPU_SHARE",
            help="Workers that share a GPU, each with that part of its memory.",
        ),
    ] = 1,
    host: Annotated[
        str, typer.Option(envvar="BATON_HOST", help="The address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="BATON_PORT", help="The port to listen on; 0: any free one.")
    ] = 8000,
    redis_url: Annotated[
        str | None,
        typer.Option(
            envvar="BATON_REDIS_URL",
            help="A Redis to use; without it one is started. One with a password belongs in "
            "the environment: others can read a command line.",
        ),
    ] = None,
    served_model_name: Annotated[
        str | None,
        typer.Option(
            envvar="BATON_SERVED_MODEL_NAME", help="The model's name; its id, or its folder's."
        ),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            envvar="BATON_DRAIN_TIMEOUT",
            help="Seconds that running requests get to finish after the signal to stop.",
        ),
    ] = 30.0,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return when the server is ready, and leave it running: baton logs shows what it "
            "prints, baton down ends it.",
        ),
    ] = False,
) -> None:
    """Serve on this machine until Ctrl-C or SIGTERM, which drain (a second one stops at once).

    Exit code: 0 drained, 1 stopped at once, 2 could not start.
    """
    if detach:
        raise typer.Exit(_detached(port))
    resolved = partial(
        resolve,
        model=model,
        served_model_name=served_model_name,
        load_format=load_format,
        quantize=quantize,
        speculate=speculate,
        draft_acceptance=draft_acceptance,
        spread=spread,
        overlap=overlap,
        prefix_cache=prefix_cache,
        host_cache_gb=host_cache,
        device=device,
        prefill=prefill,
        decode=decode,
        role=role,
        workers=workers,
        pools=pools,
        target_ttft_ms=target_ttft_ms,
        target_tpot_ms=target_tpot_ms,
        gpu_share=gpu_share,
        host=host,
        port=port,
        redis_url=redis_url,
        drain_timeout_s=drain_timeout,
    )
    raise typer.Exit(asyncio.run(_up(device, resolved)))


def _detached(port: int) -> int:
    """Start the server with the arguments of this command; returns the exit code."""
    arguments = [each for each in sys.argv[1:] if each != "--detach"]
    try:
        server = Detached.of(port, os.environ)
        started = server.start(arguments, os.environ)
    except (ValueError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        return CANNOT_START
    if started.exit_code != 0:
        typer.echo(server.log.read_text(errors="replace"), nl=False, err=True)
        return started.exit_code
    typer.echo(f"log: {server.log}\n{started.ready_line}")
    return 0


async def _up(device: Device, resolved: Callable[..., UpSettings]) -> int:
    """Serve; returns the exit code. ``resolved`` takes the number of GPUs."""
    signals = _stop_signals()  # first, so that no signal during the start is lost
    try:
        check_service_settings(os.environ)
        settings = resolved(num_gpus=0 if device == "cpu" else count_gpus())
        require_packages(settings.device)
        listener = inherited_listener(os.environ, os.getpid())
        with listener or listen_at(settings.host, settings.port) as listening:
            return await serve(settings, listening, signals)
    except (ValueError, BatonError) as error:
        typer.echo(f"error: {error}", err=True)
        return CANNOT_START


def _stop_signals() -> StopSignals:
    """A queue that gets each SIGINT, SIGTERM and SIGHUP from now on.

    SIGHUP stays ignored if it was (nohup). SIGINT does not: shells ignore it for background
    processes, but a SIGINT sent to this process by its id is meant for it.
    """
    received = StopSignals()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, received.put_nowait, number)
    return received
