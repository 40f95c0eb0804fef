"""Makes workers for tests, with settings that the tests may leave out."""

import time
from collections.abc import Callable
from types import SimpleNamespace

from decode.speculation import DraftPolicy
from engine.runner import Engine
from prefill.limits import PrefillLimits, RoundLimits
from transport.copy.host_copy import HostCopier
from transport.copy.pull import CopyStream, NoPeers
from transport.wire.messages import Role
from worker.capabilities import capabilities_of
from worker.room import Room
from worker.settings import HandoffSettings, PrefixCacheSettings, ServingSettings
from worker.spread.group import Group
from worker.worker import Worker

LIMITS = RoundLimits(PrefillLimits(256, 4), 64)


def make_worker(
    engine: Engine,
    session: SimpleNamespace,
    role: Role,
    *,
    instance: str = "w-1",
    limits: RoundLimits = LIMITS,
    handoff: HandoffSettings | None = None,
    puller: CopyStream | None = None,
    lookahead: int = 0,
    prefix_cache: PrefixCacheSettings | None = None,
    host: HostCopier | None = None,
    group: Group | None = None,
    drafts: DraftPolicy | None = None,
    awake_s: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    any_role: bool = False,
) -> Worker:
    """A worker of ``role``, or of any role at first, under ``session``."""
    settings = ServingSettings(
        instance, capabilities_of(role, any_role=any_role), limits, handoff or HandoffSettings(),
        prefix_cache or PrefixCacheSettings(), lookahead, awake_s,
    )  # fmt: skip
    room = Room(
        engine, session.send, settings, puller or NoPeers(), host=host, drafts=drafts, clock=clock
    )
    return Worker(room, session, group)
