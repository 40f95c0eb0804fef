"""The deployment ``Node``: each replica holds one node's GPUs and runs Baton's stack on them.

Life of a replica:
 1. start    ``baton up`` (stack.py), as it would serve alone; Ray waits until it is ready
 2. serve    the ingress asks Ray for a replica and sends the request to its URL (nodes.py): no
             request and no token passes through this process
 3. watch    ``/ready`` and ``/metrics`` are read for health, routing and scaling
 4. stop     Ray sends the replica no new requests; then ``baton up`` gets SIGTERM, and running
             requests have ``drain_s`` to end. A stack cannot finish any if it answers none of
             ``_ASKS`` requests, or had no live worker for too long at its last health check: it
             gets ``STOP_S``, so that the next one gets its GPUs
"""

import asyncio
import math
import os
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import ray
from ray import serve

from deploy.ray.fetch import Fetched, Fetcher
from deploy.ray.scaling import load_of
from deploy.ray.settings import STOP_S, NodeSettings
from deploy.ray.stack import Stack, up_service
from transport.wire.errors import BatonError

_ANSWER_S = 5.0
_ASKED_S = 2.0
"""Shorter than the ingress waits, so that it can still use the answers of other nodes."""
_ASKS, _ALIVE_S = 3, 3.0
"""Requests before a stop, one after the other: a busy stack may answer one too late."""


class Unhealthy(BatonError):
    """The stack is unhealthy; Ray replaces the replica after three in a row."""


class _Ready(msgspec.Struct):
    """The fields of ``/ready`` that are read."""

    ready: bool
    problems: list[str] = []


def _is_dead(problem: str) -> bool:
    """True if a problem of ``/ready`` says that a role has no workers and no substitutes."""
    return problem.startswith("no live") and problem.endswith("worker")


class Node:
    """One node. Its methods are the hooks of Ray Serve, and ``ask``."""

    async def __init__(self, settings: NodeSettings) -> None:  # type: ignore[misc]
        """Start the stack and wait until it is ready. Raises StackEnded."""
        host = ray.util.get_node_ip_address()
        service = up_service(
            os.environ, settings.settings, host=host, port=settings.port, drain_s=settings.drain_s
        )
        self._stop_s = settings.drain_s + STOP_S
        self._unready_s = settings.unready_s
        self._dead_since = math.inf  # when the last worker died; infinite while one lives
        self._dead_too_long = True  # a stack that never was ready has nothing to finish
        self._stack = Stack(service)
        await self._stack.start()
        self._fetcher = Fetcher(self._stack.url, _ANSWER_S)
        self._name = serve.get_replica_context().replica_id.unique_id
        self._dead_too_long = False
        self._stopping = False

    def record_replica_metadata(self) -> dict[str, str]:
        return {"name": self._name, "url": self._stack.url}

    async def check_health(self) -> None:
        """Raise Unhealthy if the stack will not recover by itself: it has ended, it does not
        answer, or it has had no live worker for ``unready_s``. A full stack is not ready either,
        but healthy."""
        if ended := self._stack.ended:
            raise Unhealthy(f"baton up has ended: {ended}")
        ready, now = await self._ready(), time.monotonic()
        dead = not ready.ready and any(map(_is_dead, ready.problems))
        self._dead_since = min(self._dead_since, now) if dead else math.inf
        self._dead_too_long = now - self._dead_since > self._unready_s
        if self._dead_too_long:
            raise Unhealthy(f"not ready for {self._unready_s:g} s: {'; '.join(ready.problems)}")

    async def record_routing_stats(self) -> dict[str, Any]:
        try:
            return {
                "ready": (await self._ready()).ready,
                "open": sum((await self._load()).values()),
            }
        except Unhealthy:
            return {"ready": False, "open": 0}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """The load for scaling; empty while the stack ends, as its port is closed then."""
        return {} if self._stopping else await self._load()

    async def ask(self, path: str, headers: Mapping[str, str]) -> tuple[str, Fetched]:
        """This replica's name, and the stack's answer to a GET."""
        async with asyncio.timeout(_ASKED_S):
            return self._name, await self._fetcher.get(path, headers)

    async def __del__(self) -> None:
        if getattr(self, "_stack", None):
            await self.end()

    async def end(self) -> None:
        """Stop the stack, with a drain if that can finish requests."""
        self._stopping = True
        drains = not self._dead_too_long and await self._answers()
        await self._stack.stop(self._stop_s if drains else STOP_S)

    async def _answers(self) -> bool:
        for _ in range(_ASKS):
            try:
                async with asyncio.timeout(_ALIVE_S):
                    await self._get("/health")
            except (Unhealthy, TimeoutError):
                continue
            return True
        return False

    async def _ready(self) -> _Ready:
        try:
            return msgspec.json.decode(await self._get("/ready"), type=_Ready)
        except msgspec.DecodeError as error:
            raise Unhealthy(f"/ready of {self._stack.url} cannot be read: {error}") from error

    async def _load(self) -> dict[str, float]:
        """The load by the metrics, which need no API key."""
        return load_of((await self._get("/metrics")).decode())

    async def _get(self, path: str) -> bytes:
        try:
            return (await self._fetcher.get(path, {})).body
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unhealthy(f"{path} of {self._stack.url} is not answered: {error!r}") from error
