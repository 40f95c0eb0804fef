"""One run of ``baton up``: its run folder, guardian, supervisor and ready lines."""

import asyncio
import json
import os
import shlex
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from deploy.console import LogWriter, console_for
from deploy.ports import DEFAULT_URL, base_url, reachable
from deploy.rundir import Guardian, RunDir, base_dir, remove_abandoned
from deploy.services import API_KEYS, services
from deploy.settings import UpSettings
from deploy.supervisor import StopSignals, Supervisor
from transport.copy import shm

_LAST_LINES_S = 2.0
_QUESTION = (
    "Nina has 13 shells. Diana gives Nina 46 shells. She loses 11 of them. "
    "How many shells does Nina have now?"
)


async def serve(settings: UpSettings, listener: socket.socket, signals: StopSignals) -> int:
    """Serve; returns the exit code. Raises ValueError and BatonError if it cannot start."""
    base = base_dir(os.environ)
    remove_abandoned(base)
    shm.sweep()
    with ExitStack() as cleanup:
        writer = LogWriter()
        cleanup.callback(writer.close, _LAST_LINES_S)
        cleanup.callback(shm.sweep)
        run_dir = RunDir(base)
        cleanup.callback(Guardian(run_dir.path).stop)
        cleanup.callback(run_dir.remove)
        console = console_for(writer, asyncio.get_running_loop().call_later)
        cleanup.callback(console.close)
        port = int(listener.getsockname()[1])
        supervisor = Supervisor(
            services(
                settings,
                port=port,
                listen_fd=listener.fileno(),
                run_dir=run_dir.path,
                inherited=os.environ,
            ),
            listener=listener,
            run_dir=run_dir.path,
            stop_signals=signals,
            console=console,
            ready_lines=[
                *_export_url(settings, port),
                _curl(settings, port, os.environ),
                _ready_line(settings, port),
            ],
            drain_timeout_s=settings.drain_timeout_s,
        )
        return await supervisor.run()


def _ready_line(settings: UpSettings, port: int) -> str:
    """The line that programs which start ``baton up`` read: its form is a contract."""
    return (
        f"ready: {base_url(settings.host, port)} ({settings.pools}, {settings.device}, "
        f"{settings.served_model_name})"
    )


def _export_url(settings: UpSettings, port: int) -> list[str]:
    """The setting by which other commands find the address; none for their default address."""
    url = base_url(reachable(settings.host), port)
    if url == DEFAULT_URL:
        return []
    return [f"for baton status, top, chat, bench, logs and down:\n  export BATON_URL={url}"]


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
