"""Which worker holds which GPU, for all coordinators that share one Redis.

1. A worker asks for a GPU before it loads anything, by a ``Claim`` that lists those it would take.
2. The claim is decided in Redis, by one script for all coordinators (scripts.py), and recorded as
   a lease with a time to live. The worker learns the answer; denied, it asks again for a while.
3. The coordinator renews the leases of its workers with every heartbeat of the store.
4. A lease ends with its holder's process: its connection has closed, or two heartbeats do not get
   through. Where the coordinator died too, nobody renews it, and it expires.
5. A holder that finds its GPU unfit says so. The GPU is marked in Redis, and again when its lease
   ends: nobody gets it for a while from then on, or until somebody removes the mark.

The coordinator does this for the workers, so that they need neither Redis nor its password, and
so that a lease lives as long as the holder's process and not as long as its loop: one that loads
for minutes, or hangs, still fills its GPU. Coordinators with different Redis servers do not see
each other's leases; what a worker then finds on the GPU (engine/gpu.py) is the second safeguard.
"""

import asyncio
import logging
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import Protocol

from transport.wire.errors import BatonError
from transport.wire.messages import Claim, Denied, Granted, Hello, ToWorker

log = logging.getLogger(__name__)

_MAX_DENIED = 1024


class LeaseStore(Protocol):
    """The leases' record in Redis."""

    async def claim_gpu(self, holder: str, gpus: tuple[str, ...], share: int) -> tuple[str, str]:
        """The GPU that ``holder`` has from now on or "", and which it could not have and why;
        raises RedisUnavailable."""
        ...

    def hold_gpu(self, holder: str, gpu: str, share: int) -> None:
        """Renew the holder's lease from now on."""
        ...

    def release_gpu(self, holder: str) -> None:
        """Give its lease back, if it has one."""
        ...

    def mark_unfit(self, gpu: str, why: str) -> None:
        """Nobody may claim it for a while, which begins now. Written before later releases."""
        ...


@dataclass
class Holder:
    gpu: str
    unfit: str = ""


class Leases:
    """The leases of one coordinator's workers. All on its event loop."""

    def __init__(self, store: LeaseStore, send: Callable[[str, ToWorker], bool]) -> None:
        self._store = store
        self._send = send
        self._holders: dict[str, Holder] = {}
        self._deciding: dict[str, asyncio.Task[None]] = {}
        self._denied: dict[str, str] = {}

    def claim(self, claim: Claim) -> None:
        """Answer a claim, as soon as Redis has decided it. Asked again, it is answered again."""
        if claim.instance not in self._deciding:
            task = asyncio.create_task(self._decide(claim), name=f"claim of {claim.instance}")
            self._deciding[claim.instance] = task

    def keep(self, hello: Hello) -> None:
        """Take over the lease of a worker that comes from another coordinator. It fills its GPU
        whatever Redis says, so there is nothing to decide."""
        if hello.gpu and hello.instance not in self._holders:
            self._hold(hello.instance, hello.gpu, hello.gpu_share)

    def unfit(self, instance: str, why: str) -> None:
        """A worker says that nothing should be computed on its GPU."""
        holder = self._holders.get(instance)
        if holder is None:
            return
        if not holder.unfit:
            log.error("%s finds GPU %s unfit: %s", instance, holder.gpu, why)
        holder.unfit = why
        self._store.mark_unfit(holder.gpu, why)

    @property
    def holders(self) -> Set[str]:
        return self._holders.keys()

    def end(self, gone: set[str]) -> None:
        """Let go of what the processes held that are gone."""
        for instance in gone & self.holders:
            holder = self._holders.pop(instance)
            if holder.unfit:
                log.warning("%s is gone; GPU %s is unfit", instance, holder.gpu)
                self._store.mark_unfit(holder.gpu, holder.unfit)
            else:
                log.info("%s is gone; GPU %s is free", instance, holder.gpu)
            self._store.release_gpu(instance)

    async def _decide(self, claim: Claim) -> None:
        try:
            gpu, reason = await self._store.claim_gpu(claim.instance, claim.gpus, claim.share)
        except BatonError as error:
            gpu, reason = "", str(error)
        finally:
            del self._deciding[claim.instance]
        if not gpu:
            self._say_denied(claim.instance, reason)
            self._send(claim.instance, Denied(reason))
            return
        self._denied.pop(claim.instance, None)
        self._hold(claim.instance, gpu, claim.share)
        log.info("%s has GPU %s", claim.instance, gpu)
        if reason:
            log.warning("%s could not have others: %s", claim.instance, reason)
        self._send(claim.instance, Granted(gpu))

    def _say_denied(self, instance: str, reason: str) -> None:
        """Once for each reason: a worker for which there is no GPU asks every second."""
        if self._denied.get(instance) == reason:
            return
        if len(self._denied) >= _MAX_DENIED:
            self._denied.clear()
        self._denied[instance] = reason
        log.warning("%s gets no GPU yet: %s", instance, reason)

    def _hold(self, instance: str, gpu: str, share: int) -> None:
        self._holders[instance] = Holder(gpu)
        self._store.hold_gpu(instance, gpu, share)
