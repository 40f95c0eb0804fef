"""Which services ``baton up`` starts and what each is told.

Settings travel in the environment alone: a command line is there for every user to read, and
the Redis URL may hold a password.
"""

import os
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coordinator.record.redis_url import PASSWORD
from deploy.settings import UpSettings
from transport.wire.channel_keys import SECRET
from worker.cores import threads_of, usable_cores

API_KEYS = frozenset({"BATON_API_KEYS", "BATON_API_KEYS_FILE"})
_REDIS_PASSWORDS = frozenset({PASSWORD, f"{PASSWORD}_FILE"})
_CODE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Service:
    """One process to run: its name in logs, its command, its whole environment, and the listening
    socket that is kept for it."""

    name: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    listen_fd: int | None = None

    @property
    def role(self) -> str:
        """Its pool: of decode-2 it is decode."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def is_coordinator(self) -> bool:
        return self.name == "coordinator"


def services(
    settings: UpSettings,
    *,
    port: int,
    listen_fd: int | None = None,
    run_dir: Path,
    redis_url: str,
    inherited: Mapping[str, str],
) -> list[Service]:
    """The coordinator, then the workers: prefill and decode, or both. The coordinator gets the
    socket ``listen_fd``, which listens at ``port``.

    ``inherited`` (our own environment) passes on under the settings, so what only a service
    knows, as a pool's size, can be set for all. The secret of the channel is made here unless it
    is given; the clients' keys are the coordinator's alone.
    """
    endpoint = f"ipc://{run_dir / 'coordinator.sock'}"
    num_workers = settings.num_prefill + settings.num_decode + settings.num_colocated
    num_threads = threads_of(0, num_workers, usable_cores())
    # PYTHONSAFEPATH: a folder named "decode" where the user happens to stand is not ours.
    path = [inherited.get("PYTHONPATH", ""), str(_CODE)]
    shared = {
        "BATON_THREADS": str(num_threads),
        **inherited,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "NOTIFY_SOCKET": str(run_dir / "notify.sock"),
        "BATON_MODEL": str(settings.model),
        "BATON_SERVED_MODEL_NAME": settings.served_model_name,
        "BATON_REDIS_URL": redis_url,
        "BATON_LOAD_FORMAT": settings.load_format,
        "BATON_QUANTIZE": settings.quantize,
        "BATON_DEVICE": settings.device,
        "BATON_GPU_SHARE": str(settings.gpu_share),
    }
    if not (inherited.get(SECRET) or inherited.get(f"{SECRET}_FILE")):
        shared[SECRET] = secrets.token_hex(32)
    front = {
        "BATON_HOST": settings.host,
        "BATON_PORT": str(port),
        "BATON_BIND": endpoint,
        "BATON_DRAIN_TIMEOUT": f"{settings.drain_timeout_s:g}",
        **{name: shared.pop(name) for name in API_KEYS & shared.keys()},
    }
    password = {name: shared.pop(name) for name in _REDIS_PASSWORDS & shared.keys()}
    if settings.redis_url is not None:  # a Redis of our own has none
        front |= password
    worker = {"BATON_COORDINATOR": endpoint}
    if settings.device == "cpu":
        # A core is busy with that many, and the first prompts of a burst need not wait for all.
        worker["BATON_MAX_BATCH_TOKENS"] = inherited.get("BATON_MAX_BATCH_TOKENS", "256")
        name = "BATON_MAX_TOKENS_BESIDE_DECODE"
        worker[name] = inherited.get(name, "128")
    planned = [("coordinator", "coordinator", front)]
    planned += [(f"prefill-{i}", "prefill", worker) for i in range(1, settings.num_prefill + 1)]
    planned += [(f"decode-{i}", "decode", worker) for i in range(1, settings.num_decode + 1)]
    planned += [
        (f"colocated-{i}", "colocated", worker) for i in range(1, settings.num_colocated + 1)
    ]
    return [
        Service(
            name=name,
            argv=(sys.executable, "-m", module),
            env={**shared, **own, "BATON_SERVICE_NAME": name},
            listen_fd=listen_fd if name == "coordinator" else None,
        )
        for name, module, own in planned
    ]
