"""A worker process from its settings to its end, the same for both roles.

load     weights and cache, in memory that peers can open
join     hello to the coordinator, welcome
serve    the worker loop (worker.py) around the role's pool
leave    goodbye; the exported memory is withdrawn
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex
from typing import Protocol

import torch

from engine.config import EngineConfig
from engine.runner import Engine
from engine.worker import Pool, WorkerLoop
from telemetry.notify import notify, progress
from transport.channel import WorkerChannel
from transport.memory import OwnMemory, own_memory
from transport.messages import Hello, MemoryExport, Role
from transport.selftest import write_pattern
from transport.session import Session

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """What every worker needs besides its engine. ``lookahead`` is how many steps may be
    launched before the oldest one's tokens are processed, 0 or 1 (options.LOOKAHEAD); ``threads``
    0 leaves torch its own choice."""

    coordinator: str
    engine: EngineConfig
    lookahead: int = 0
    threads: int = 0
    drain_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.coordinator:
            raise ValueError("coordinator: no endpoint given, e.g. tcp://127.0.0.1:5555")
        if self.lookahead not in (0, 1):
            raise ValueError(f"lookahead: {self.lookahead} is neither 0 nor 1")
        if self.threads < 0:
            raise ValueError(f"threads: {self.threads} is negative")
        if self.drain_timeout_s < 0:
            raise ValueError(f"drain_timeout_s: {self.drain_timeout_s} is negative")


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
    JoinRefused, DeadlineExceeded and ProtocolMismatch."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    instance = f"{role}-{token_hex(4)}"
    memory = own_memory(settings.engine.device, instance)
    try:
        engine = Engine.load(
            settings.engine,
            memory.allocate,
            progress=lambda done, total: progress("loading weights", done / total),
        )
        write_pattern(engine.cache, instance)
        channel = WorkerChannel(settings.coordinator, instance)
        try:
            session = Session(channel, _hello(role, instance, engine, memory), time.monotonic)
            pool = make_pool(engine, session, instance)
            loop = WorkerLoop(
                session,
                pool,
                drain_timeout_s=settings.drain_timeout_s,
                on_ready=lambda: notify(READY="1", STATUS="serving"),
                on_stopping=lambda: notify(STOPPING="1", STATUS="draining"),
            )
            try:
                loop.run()
            finally:
                pool.close()
        finally:
            channel.close()
    finally:
        memory.close()


def _hello(role: Role, instance: str, engine: Engine, memory: OwnMemory) -> Hello:
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
    )
