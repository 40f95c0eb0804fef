"""``baton up``: serve on this machine, in the foreground."""

import json
import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from deploy.console import display
from deploy.gpus import count_gpus
from deploy.guardian import Guardian
from deploy.no_answer import DEFAULT_URL
from deploy.outlet import Outlet
from deploy.ports import base_url, listen_at, reachable
from deploy.redis_post import ForeignRedis, OwnRedis, RedisPost
from deploy.rundir import RunDir, base_dir, sweep
from deploy.services import API_KEYS, services
from deploy.settings import Device, LoadFormat, Quantize, Role, UpSettings, resolve
from deploy.signals import StopSignals
from deploy.supervisor import Supervisor
from telemetry.last_words import CANNOT_START
from telemetry.listen_fds import inherited_listener
from transport.copy import shm
from transport.wire.errors import BatonError

_GUARDIAN_STOP_S = 10.0
_LAST_WORDS_S = 2.0
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
    signals = StopSignals()
    try:
        settings = resolve(
            num_gpus=0 if device == "cpu" else count_gpus(),
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
        listener = inherited_listener(os.environ, os.getpid())
        with listener or listen_at(settings.host, settings.port) as listening:
            code = _serve(settings, listening, base_dir(os.environ), signals)
    except (ValueError, BatonError) as error:
        typer.echo(f"error: {error}", err=True)
        code = CANNOT_START
    raise typer.Exit(code)


def _serve(settings: UpSettings, listener: socket.socket, base: Path, signals: StopSignals) -> int:
    port = int(listener.getsockname()[1])
    sweep(base)
    with ExitStack() as cleanup:
        outlet = Outlet()
        cleanup.callback(outlet.close, _LAST_WORDS_S)
        cleanup.callback(shm.sweep)
        run_dir = RunDir(base)
        cleanup.callback(run_dir.remove)
        guardian = Guardian(run_dir.path)
        cleanup.callback(guardian.close, _GUARDIAN_STOP_S)
        redis: RedisPost = OwnRedis(run_dir.path / "redis")
        if settings.redis_url is not None:
            redis = ForeignRedis(settings.redis_url)
        supervisor = Supervisor(
            services(
                settings,
                port=port,
                listen_fd=listener.fileno(),
                run_dir=run_dir.path,
                redis_url=redis.url,
                inherited=os.environ,
            ),
            redis=redis,
            listener=listener,
            run_dir=run_dir.path,
            signals=signals,
            guardian=guardian,
            display=display(outlet),
            ready_lines=[
                *_elsewhere(settings, port),
                _curl(settings, port, os.environ),
                _ready_line(settings, port),
            ],
            drain_timeout_s=settings.drain_timeout_s,
        )
        return supervisor.run()


def _ready_line(settings: UpSettings, port: int) -> str:
    """Others read this line: its form is a contract."""
    return (
        f"ready: {base_url(settings.host, port)} ({settings.pools}, {settings.device}, "
        f"{settings.served_model_name})"
    )


def _elsewhere(settings: UpSettings, port: int) -> list[str]:
    """What the other commands need in order to find it, where it is not at their default."""
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
