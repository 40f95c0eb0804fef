"""``baton doctor``: checks whether Baton can serve on this machine, and says what to change."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from coordinator.core.settings import HubSettings
from decode.spread_policy import DEFAULT as SPREAD
from deploy import gpu_checks, host_checks
from deploy.container_checks import containers
from deploy.findings import Finding
from deploy.gpus import ListedGpu
from deploy.pair_checks import pairs
from deploy.settings import Device

_CODE = Path(__file__).resolve().parent.parent


def doctor(
    device: Annotated[
        Device, typer.Option(envvar="BATON_DEVICE", help="auto: cuda where there is a GPU.")
    ] = "auto",
    host: Annotated[str, typer.Option(envvar="BATON_HOST", help="To listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="BATON_PORT", help="To listen on.")] = 8000,
    redis_url: Annotated[
        str | None, typer.Option(envvar="BATON_REDIS_URL", help="A Redis to use.")
    ] = None,
    max_open: Annotated[
        int, typer.Option(envvar="BATON_MAX_OPEN", help="Requests open at a time.")
    ] = HubSettings.max_open,
    spread: Annotated[
        str, typer.Option(envvar="BATON_SPREAD", help="As for baton up: auto, off or N.")
    ] = SPREAD,
) -> None:
    """Check what Baton needs on this machine, one line for each check, and test every pair of GPUs.

    Exit code: 0 nothing fails (there may be warnings), 1 a check fails.
    """
    levels: Counter[str] = Counter()
    for finding in findings(device, host, port, redis_url, max_open, spread):
        print(finding.line(), flush=True)
        levels[finding.level] += 1
    print(f"{levels['ok']} ok, {levels['warn']} warnings, {levels['fail']} failed")
    raise typer.Exit(1 if levels["fail"] else 0)


def findings(
    device: Device,
    host: str,
    port: int,
    redis_url: str | None,
    max_open: int,
    spread: str,
) -> Iterator[Finding]:
    """Yield every finding as soon as it is known; quick checks come first."""
    environ = {
        **os.environ,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(_CODE)])),
    }
    yield host_checks.versions()
    yield host_checks.redis_server(redis_url, os.environ)
    yield host_checks.port(host, port)
    yield host_checks.namespaces()
    gpus: list[ListedGpu] = []
    if device != "cpu":
        gpus, found = gpu_checks.driver(os.environ)
        yield from found
        yield from gpu_checks.locks(gpus, os.environ)
    if device == "cuda" and not gpus:
        yield Finding("fail", "gpus", "none is visible", "say --device cpu, or see nvidia-smi")
        return
    yield host_checks.shared_memory(needed=not gpus)
    yield host_checks.open_files(max_open)
    if gpus if spread == "auto" else spread != "off":
        yield host_checks.spread_steps(spread, num_gpus=len(gpus))
    yield from containers(on_gpus=bool(gpus), code=_CODE, environ=os.environ)
    devices = ["cpu"]
    if gpus:
        num_usable, found = gpu_checks.peers(environ)
        yield from found
        devices = [f"cuda:{index}" for index in range(num_usable)]
    yield from pairs(devices, environ)
