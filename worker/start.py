"""A worker process from its settings to its end, the same for both roles.

claim    on a GPU machine: a GPU, from the coordinator
load     weights and cache, in memory that peers can open
join     hello to the coordinator, welcome
serve    the worker loop (loop.py) around the role's pool
leave    goodbye; the exported memory is withdrawn
"""

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex
from typing import Protocol

import torch

from engine import gpu
from engine.config import EngineConfig
from engine.runner import Engine
from telemetry.notify import notify, progress
from telemetry.nvml import local_gpus
from transport.copy.memory import OwnMemory, own_memory
from transport.copy.selftest import write_pattern
from transport.wire.channel import WorkerChannel
from transport.wire.channel_keys import ChannelKeys
from transport.wire.claim import claim_gpu
from transport.wire.messages import Claim, Hello, MemoryExport, Role
from transport.wire.session import Session
from worker.gpu_watch import GpuWatch, NoWatch
from worker.loop import Pool, WorkerLoop
from worker.stall import StallGuard

log = logging.getLogger(__name__)

MAX_CLAIM_TIMEOUT_S = 86_400.0
MAX_STALL_TIMEOUT_S = 86_400.0


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker needs besides its engine. ``lookahead`` is how many steps may be
    launched before the oldest one's tokens are processed, 0 or 1 (options.LOOKAHEAD); ``threads``
    0 leaves torch its own choice; ``gpu`` names one (engine/gpu.py), or "" any that is free;
    ``claim_timeout_s`` is how long it waits for that, 0: until there is one, and by default longer
    than the lease of a dead worker lives when its coordinator died with it; ``channel_keys`` let it
    join a coordinator that has them too; ``stall_timeout_s`` as in worker/stall.py."""

    coordinator: str
    engine: EngineConfig
    lookahead: int = 0
    threads: int = 0
    drain_timeout_s: float = 30.0
    gpu: str = ""
    claim_timeout_s: float = 60.0
    channel_keys: ChannelKeys | None = None
    stall_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.coordinator:
            raise ValueError("coordinator: no endpoint given, e.g. tcp://127.0.0.1:5555")
        if self.lookahead not in (0, 1):
            raise ValueError(f"lookahead: {self.lookahead} is neither 0 nor 1")
        if self.threads < 0:
            raise ValueError(f"threads: {self.threads} is negative")
        if self.drain_timeout_s < 0:
            raise ValueError(f"drain_timeout_s: {self.drain_timeout_s} is negative")
        if not 0 <= self.claim_timeout_s <= MAX_CLAIM_TIMEOUT_S:
            most = f"from 0 to {MAX_CLAIM_TIMEOUT_S:g}"
            raise ValueError(f"claim_timeout_s: {self.claim_timeout_s} is not {most}")
        if not 0 <= self.stall_timeout_s <= MAX_STALL_TIMEOUT_S:
            most = f"from 0 to {MAX_STALL_TIMEOUT_S:g}"
            raise ValueError(f"stall_timeout_s: {self.stall_timeout_s} is not {most}")


class RolePool(Pool, Protocol):
    def close(self) -> None:
        """Nothing writes the cache after this."""
        ...


def serve(
    role: Role,
    settings: WorkerSettings,
    make_pool: Callable[[Engine, Session, str], RolePool],
) -> None:
    """Run one worker until it is told to stop. Raises ValueError (settings, checkpoint, memory),
    ClaimDenied, JoinRefused, ChannelRefused, DeadlineExceeded, ExportLost, SharedMemoryFull,
    ProtocolMismatch."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    instance = f"{role}-{token_hex(4)}"
    with ExitStack() as cleanup:
        channel = WorkerChannel(settings.coordinator, instance, keys=settings.channel_keys)
        cleanup.callback(channel.close)
        granted = _claim(channel, instance, settings)
        memory = own_memory(settings.engine.device, instance)
        cleanup.callback(memory.close)
        engine = Engine.load(
            settings.engine,
            memory.allocate,
            progress=lambda done, total: progress("loading weights", done / total),
        )
        write_pattern(engine.cache, instance)
        hello = _hello(role, instance, engine, memory, granted)
        session = Session(channel, hello, time.monotonic)
        pool = make_pool(engine, session, instance)
        cleanup.callback(pool.close)
        watch = GpuWatch(lambda: local_gpus(granted)) if granted else NoWatch()
        cleanup.callback(watch.close)
        WorkerLoop(
            session,
            pool,
            watch,
            StallGuard(settings.stall_timeout_s),
            drain_timeout_s=settings.drain_timeout_s,
            on_waiting=lambda: notify(STATUS="waiting for a worker to pull from"),
            on_ready=lambda: notify(READY="1", STATUS="serving"),
            on_stopping=lambda: notify(STOPPING="1", STATUS="draining"),
            memory_lost=memory.lost if role == "prefill" else lambda: "",
        ).run()


def _claim(channel: WorkerChannel, instance: str, settings: WorkerSettings) -> str:
    """Make the GPU that the coordinator grants the current one; "" on the CPU."""
    if settings.engine.device == "cpu":
        return ""
    seen = gpu.visible_gpus()
    wanted = tuple(each.uuid for each in gpu.named(settings.gpu, seen))
    notify(STATUS="waiting for a GPU")
    granted = claim_gpu(
        channel,
        Claim(instance, wanted, settings.engine.gpu_share),
        timeout_s=settings.claim_timeout_s,
        clock=time.monotonic,
        on_denied=lambda reason: notify(STATUS=f"waiting for a GPU: {reason}"),
    )
    (index,) = (each.index for each in seen if each.uuid == granted)
    log.info("GPU %d, %s", index, granted)
    torch.cuda.set_device(index)
    return granted


def _hello(role: Role, instance: str, engine: Engine, memory: OwnMemory, granted: str) -> Hello:
    layout, pools = engine.layout, engine.pools
    pool_tokens = pools.num_pages * layout.page_size
    return Hello(
        instance=instance,
        role=role,
        model=engine.fingerprint,
        device=engine.config.device,
        pid=os.getpid(),
        max_seq_len=min(engine.model_config.max_position_embeddings, pool_tokens),
        max_running=pools.num_state_slots,
        memory=MemoryExport(
            kind=memory.kind,
            handle=memory.handle,
            size_bytes=memory.size_bytes,
            layout=layout,
            pools=pools,
        ),
        gpu=granted,
        gpu_share=engine.config.gpu_share,
    )
