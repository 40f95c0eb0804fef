"""The pools: which worker computes prompts and which decodes, as it is assigned. Pure.

A worker that takes any role begins with that of its service, and needs no word to change it: it has
all that both roles need, so a change is one of the coordinator's mind. What a new prefill worker
still decodes moves away (requests/moves.py); what a new decode worker still computes is handed off,
as ever.

    set       pools asked for by hand; they stand until others are asked for
    assign    pools that the policy chose (pools_follow.py)
    restore   at each heartbeat: where a worker has died and come back with its first role, or the
              last one of a role is gone, a worker that can is assigned what is missing

Without a prefill worker the decode workers compute prompts too, as colocated ones do. So the pool
of prefill workers may be empty if that is asked for; the other one never loses its last worker.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from coordinator.core.contract import PoolChange, PoolsSuperseded
from coordinator.core.workers.registry import Registry
from coordinator.core.workers.worker import Worker
from transport.wire.messages import Role

log = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""A sequence without room elsewhere stays where it is until it ends, or there is room."""


@dataclass(frozen=True)
class Size:
    """Numbers of workers by role."""

    prefill: int
    decode: int

    def __str__(self) -> str:
        return f"{self.prefill} prefill and {self.decode} decode"

    def of(self, role: Role) -> int:
        return self.prefill if role == "prefill" else self.decode


class Pools:
    """Assigns the workers of ``registry`` their roles. ``changed`` is called for each change, with
    the role before. A change is waited for at most ``patience_s`` seconds."""

    def __init__(
        self,
        registry: Registry,
        changed: Callable[[Worker, Role], object],
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._registry = registry
        self._changed = changed
        self._patience_s = patience_s
        self._asked: Size | None = None
        self._under_way: asyncio.Future[None] | None = None

    async def set(self, prefill: int, decode: int) -> PoolChange:
        """Assign roles so that the pools have these sizes; returns once no prefill worker decodes
        any more, or after patience_s. Raises ValueError for pools that these workers cannot form,
        and PoolsSuperseded if others are asked for before that."""
        size = Size(prefill, decode)
        self._require(size)
        if self._under_way is not None and not self._under_way.done():
            self._under_way.set_exception(PoolsSuperseded(f"pools of {size} were asked for since"))
        changes = self.assign(size)
        self._under_way = under_way = asyncio.get_running_loop().create_future()
        num_to_move = self._num_to_move()
        self.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._patience_s):
                await under_way
        num_left = self._num_to_move()
        roles = {worker.instance: str(worker.role) for worker in self._registry.all()}
        return PoolChange(prefill, decode, roles, changes, num_to_move - num_left, num_left)

    @property
    def all_do_both(self) -> bool:
        """True if pools without a prefill worker were asked for."""
        return self._asked is not None and not self._asked.prefill

    def can_change(self) -> bool:
        """True if there are pools, and a worker that may change its role."""
        live = self.live()
        return any(map(_is_movable, live)) and all(worker.role != "colocated" for worker in live)

    def look(self) -> None:
        """Look whether a change is over. Call it when sequences may have moved or ended."""
        if self._under_way is None:
            return
        if not self._num_to_move():
            if not self._under_way.done():
                self._under_way.set_result(None)
            self._under_way = None

    def restore(self) -> None:
        """Assign what is missing since workers came or went."""
        live = self.live()
        if not any(_is_movable(worker) for worker in live):
            return
        now, wanted = _sizes(live), self._asked or _sizes(live, first=True)
        for role, other in _BOTH_WAYS:
            lacks = now.of(role) < max(_LEAST[role], wanted.of(role))
            least = max(_LEAST[other], wanted.of(other)) if now.of(role) else _LEAST[other]
            spare = now.of(other) > least
            if lacks and spare:
                self._flip(other, role, 1)
                return

    def assign(self, size: Size) -> dict[str, str]:
        """Assign roles for pools of this size from now on; returns what changed, by worker."""
        self._asked = size
        before = {worker.instance: worker.role for worker in self.live()}
        now = _sizes(self.live())
        self._flip("decode", "prefill", size.prefill - now.prefill)
        self._flip("prefill", "decode", size.decode - now.decode)
        return {
            instance: f"{role} → {self._registry.require(instance).role}"
            for instance, role in before.items()
            if role != self._registry.require(instance).role
        }

    def _num_to_move(self) -> int:
        return sum(worker.num_decoded for worker in self._registry.of("prefill"))

    def _flip(self, from_role: Role, to_role: Role, number: int) -> None:
        """Assign the idlest workers of a role the other one."""
        able = [w for w in self.live() if w.role == from_role and _is_movable(w)]
        able.sort(key=lambda w: (w.load.num_sequences, w.load.tokens_ahead))
        for worker in able[: max(0, number)]:
            worker.role = to_role
            log.info("%s: %s → %s", worker.instance, from_role, to_role)
            self._changed(worker, from_role)

    def _require(self, size: Size) -> None:
        for name, least in _LEAST.items():
            if (number := size.of(name)) < least:
                raise ValueError(f"{name}: {number} is not {least} or more")
        live = self.live()
        if any(worker.role == "colocated" for worker in live):
            raise ValueError("pools: colocated workers do both, and have no pools")
        if size.prefill + size.decode != len(live):
            asked = size.prefill + size.decode
            raise ValueError(f"pools: {asked} workers are asked for, {len(live)} take work")
        for role in ("prefill", "decode"):
            fixed = sum(worker.role == role and not _is_movable(worker) for worker in live)
            if fixed > getattr(size, role):
                raise ValueError(
                    f"{role}: {fixed} workers cannot change their role; start them with "
                    "BATON_ANY_ROLE (baton up --pools manual)"
                )

    def live(self) -> list[Worker]:
        """The workers that take work."""
        return [worker for worker in self._registry.all() if not worker.draining]


_LEAST: dict[Role, int] = {"prefill": 0, "decode": 1}
_BOTH_WAYS: tuple[tuple[Role, Role], ...] = (("prefill", "decode"), ("decode", "prefill"))


def _is_movable(worker: Worker) -> bool:
    return worker.can_be("prefill") and worker.can_be("decode")


def _sizes(workers: Iterable[Worker], *, first: bool = False) -> Size:
    """The sizes of the pools; ``first``: by the roles that the workers began with."""
    roles = [worker.hello.role if first else worker.role for worker in workers]
    return Size(roles.count("prefill"), roles.count("decode"))
