"""``baton up``: serve on this machine, in the foreground."""

import asyncio
import json
import os
import shlex
import socket
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from deploy.api_client import DEFAULT_URL
from deploy.console import console_for
from deploy.gpus import count_gpus
from deploy.guardian import Guardian
from deploy.log_writer import LogWriter
from deploy.ports import base_url, listen_at, reachable
from deploy.redis_server import redis_url as own_redis_url
from deploy.rundir import RunDir, base_dir, remove_abandoned
from deploy.services import API_KEYS, Service, redis_service, services
from deploy.settings import Device, LoadFormat, Quantize, Role, UpSettings, resolve
from deploy.supervisor import StopSignals, Supervisor, stop_signals
from telemetry.last_words import CANNOT_START
from telemetry.listen_fds import inherited_listener
from transport.copy import shm
from transport.wire.errors import BatonError

_LAST_LINES_S = 2.0
_QUESTION = (
    "Nina has 13 shells. Diana gives Nina 46 shells. She loses 11 of them. "
    "How many shells does Nina have now?"
)


def up(
    model: Annotated[
        Path | None,
        typer.Option(
            envvar="BATON_MODEL",
            readable=False,
            help="A checkpoint's folder, or a model's in a Hugging Face cache; the bundled model.",
        ),
    ] = None,
    load_format: Annotated[
        LoadFormat,
        typer.Option(envvar="BATON_LOAD_FORMAT", help="dummy: random weights, nothing is read."),
    ] = "auto",
    quantize: Annotated[
        Quantize,
        typer.Option(
            envvar="BATON_QUANTIZE",
            help="fp8: large matrices are converted to FP8 at load; half the memory.",
        ),
    ] = "none",
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
        typer.Option(envvar="BATON_SERVED_MODEL_NAME", help="The model's name; the folder's."),
    ] = None,
    drain_timeout: Annotated[
        float,
        typer.Option(
            envvar="BATON_DRAIN_TIMEOUT",
            help="Seconds that running requests get to finish once told to stop.",
        ),
    ] = 30.0,
) -> None:
    """Serve on this machine until Ctrl-C or SIGTERM, which drain (a second one stops at once).

    Exit code: 0 drained, 1 stopped at once, 2 could not start.
    """
    resolved = partial(
        resolve,
        model=model,
        served_model_name=served_model_name,
        load_format=load_format,
        quantize=quantize,
        device=device,
        prefill=prefill,
        decode=decode,
        role=role,
        workers=workers,
        gpu_share=gpu_share,
        host=host,
        port=port,
        redis_url=redis_url,
        drain_timeout_s=drain_timeout,
    )
    raise typer.Exit(asyncio.run(_up(device, resolved)))


async def _up(device: Device, resolved: Callable[..., UpSettings]) -> int:
    """The exit code. ``resolved`` takes the number of GPUs."""
    signals = stop_signals()  # first: one that comes during the start is not lost
    try:
        settings = resolved(num_gpus=0 if device == "cpu" else count_gpus())
        listener = inherited_listener(os.environ, os.getpid())
        with listener or listen_at(settings.host, settings.port) as listening:
            return await _serve(settings, listening, base_dir(os.environ), signals)
    except (ValueError, BatonError) as error:
        typer.echo(f"error: {error}", err=True)
        return CANNOT_START


async def _serve(
    settings: UpSettings, listener: socket.socket, base: Path, signals: StopSignals
) -> int:
    remove_abandoned(base)
    shm.sweep()
    with ExitStack() as cleanup:
        writer = LogWriter()
        cleanup.callback(writer.close, _LAST_LINES_S)
        cleanup.callback(shm.sweep)
        run_dir = RunDir(base)
        cleanup.callback(Guardian(run_dir.path).stop)
        cleanup.callback(run_dir.remove)
        port = int(listener.getsockname()[1])
        redis, redis_url = _redis(settings, run_dir.path)
        supervisor = Supervisor(
            redis
            + services(
                settings,
                port=port,
                listen_fd=listener.fileno(),
                run_dir=run_dir.path,
                redis_url=redis_url,
                inherited=os.environ,
            ),
            listener=listener,
            run_dir=run_dir.path,
            stop_signals=signals,
            console=console_for(writer),
            ready_lines=[
                *_export_url(settings, port),
                _curl(settings, port, os.environ),
                _ready_line(settings, port),
            ],
            drain_timeout_s=settings.drain_timeout_s,
        )
        return await supervisor.run()


def _redis(settings: UpSettings, run_dir: Path) -> tuple[list[Service], str]:
    """The Redis to start, none where one was given, and its URL."""
    if settings.redis_url is not None:
        return [], settings.redis_url
    folder = run_dir / "redis"
    folder.mkdir(mode=0o700)
    return [redis_service(folder, run_dir, os.environ)], own_redis_url(folder)


def _ready_line(settings: UpSettings, port: int) -> str:
    """Programs that start ``baton up`` read this line: its form is a contract."""
    return (
        f"ready: {base_url(settings.host, port)} ({settings.pools}, {settings.device}, "
        f"{settings.served_model_name})"
    )


def _export_url(settings: UpSettings, port: int) -> list[str]:
    """The setting by which the other commands find an address that is not their default."""
    url = base_url(reachable(settings.host), port)
    if url == DEFAULT_URL:
        return []
    return [f"for baton status, top, chat and bench:\n  export BATON_URL={url}"]


def _curl(settings: UpSettings, port: int, environ: Mapping[str, str]) -> str:
    url = base_url(reachable(settings.host), port) + "/v1/chat/completions"
    body = {
        "model": settings.served_model_name,
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": 200,
    }
    parts = ["curl", "-sS", url, "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    locked = any(environ.get(name) for name in API_KEYS)
    key = ' -H "Authorization: Bearer $BATON_API_KEY"' if locked else ""
    return f"try it:\n  {shlex.join(parts)}{key}"
