"""The faults, each by its name: what it does to a site under load, and what it then excuses."""

import asyncio
import os
import random
import resource
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.soak import hostile, tenants
from tests.soak.load import Load
from tests.soak.site import DEAD_AFTER_S, Site

REDIS_AWAY_S = 3.0
SLOW_S = 4.0
NO_DESCRIPTORS_S = 3.0


@dataclass(frozen=True)
class Scene:
    """What a fault may use. ``draw`` makes every choice."""

    site: Site
    load: Load
    draw: random.Random


@dataclass(frozen=True)
class Fault:
    """``inject`` returns a word on what it did, once the fault itself is over. ``breaks`` excuses
    responses without an end, ``closes`` those to requests that were never accepted, which met a
    connection that was being closed, and ``forgets`` lost records of requests that had ended
    before."""

    inject: Callable[[Scene], Awaitable[str]]
    breaks: bool = False
    closes: bool = False
    forgets: bool = False


def _signal_worker(role: str, number: signal.Signals) -> Callable[[Scene], Awaitable[str]]:
    async def inject(scene: Scene) -> str:
        name = scene.draw.choice(scene.site.workers(role))
        scene.site.signal(name, number)
        return name

    return inject


def _stop_worker(role: str) -> Callable[[Scene], Awaitable[str]]:
    """For longer than a worker may be silent; then it wakes."""

    async def inject(scene: Scene) -> str:
        name = scene.draw.choice(scene.site.workers(role))
        pid = scene.site.signal(name, signal.SIGSTOP)
        stopped_s = DEAD_AFTER_S * scene.draw.uniform(1.2, 2.0)
        await asyncio.sleep(stopped_s)
        hostile.wake(pid)
        return f"{name} for {stopped_s:.1f} s"

    return inject


def _slow_worker(role: str) -> Callable[[Scene], Awaitable[str]]:
    """Stopped for a moment, again and again: it answers, but late."""

    async def inject(scene: Scene) -> str:
        name = scene.draw.choice(scene.site.workers(role))
        until = time.monotonic() + SLOW_S
        while time.monotonic() < until:
            pid = scene.site.signal(name, signal.SIGSTOP)
            await asyncio.sleep(scene.draw.uniform(0.01, 0.06))
            hostile.wake(pid)
            await asyncio.sleep(scene.draw.uniform(0.01, 0.1))
        return name

    return inject


async def _coordinator_stopped(scene: Scene) -> str:
    pid = scene.site.signal("coordinator", signal.SIGSTOP)
    stopped_s = scene.draw.uniform(0.5, DEAD_AFTER_S)
    await asyncio.sleep(stopped_s)
    hostile.wake(pid)
    return f"for {stopped_s:.1f} s"


def _signal_coordinator(number: signal.Signals) -> Callable[[Scene], Awaitable[str]]:
    async def inject(scene: Scene) -> str:
        return f"process {scene.site.signal('coordinator', number)}"

    return inject


async def _redis_killed(scene: Scene) -> str:
    scene.site.redis_server.stop(0.0)
    await asyncio.sleep(REDIS_AWAY_S)
    scene.site.restart_redis()
    return f"away for {REDIS_AWAY_S:g} s, back empty"


async def _redis_stopped(scene: Scene) -> str:
    pid = scene.site.redis_server.pid
    hostile.halt(pid)
    try:
        await asyncio.sleep(REDIS_AWAY_S)
    finally:
        hostile.wake(pid)
    return f"for {REDIS_AWAY_S:g} s"


async def _redis_flushed(scene: Scene) -> str:
    await asyncio.to_thread(scene.site.redis.flushall)
    return "FLUSHALL"


async def _redis_full(scene: Scene) -> str:
    """The server refuses every write that needs memory."""
    set_limit = scene.site.redis.config_set
    await asyncio.to_thread(set_limit, "maxmemory", "1")
    await asyncio.sleep(REDIS_AWAY_S)
    await asyncio.to_thread(set_limit, "maxmemory", "0")
    return f"maxmemory 1 for {REDIS_AWAY_S:g} s"


async def _keys_of_another_type(scene: Scene) -> str:
    return await asyncio.to_thread(hostile.replace_keys, scene.site.redis, scene.draw)


async def _clients_vanish(scene: Scene) -> str:
    asked = [scene.load.ask() for _ in range(12)]
    await asyncio.sleep(scene.draw.uniform(0.2, 1.5))
    for _, task in asked:
        task.cancel()
    await asyncio.wait([task for _, task in asked])
    gone = sum(seen.outcome == "cancelled" for seen, _ in asked)
    return f"{gone} clients left"


async def _slow_readers(scene: Scene) -> str:
    asked = [scene.load.ask(stream=True, pause_s=0.1) for _ in range(8)]
    await asyncio.wait([task for _, task in asked])
    return f"{len(asked)} clients took a tenth of a second for each event"


def _at_http(
    attack: Callable[[str, random.Random], Awaitable[str]],
) -> Callable[[Scene], Awaitable[str]]:
    async def inject(scene: Scene) -> str:
        return await attack(scene.site.stack.url, scene.draw)

    return inject


def _at_channel(*, secret: bool) -> Callable[[Scene], Awaitable[str]]:
    async def inject(scene: Scene) -> str:
        stack = scene.site.stack
        return await hostile.bad_frames(
            stack.endpoint, stack.channel_secret if secret else "", scene.draw
        )

    return inject


async def _name_taken(scene: Scene) -> str:
    stack = scene.site.stack
    name = scene.draw.choice((await stack.status())["workers"])["instance"]
    return await hostile.second_connection(stack.endpoint, stack.channel_secret, name)


async def _agents(scene: Scene) -> str:
    """Conversations with tools, and what Load asks beside them."""
    seeds = [scene.draw.randrange(1 << 31) for _ in range(tenants.NUM_AGENTS)]
    async with asyncio.TaskGroup() as tasks:
        for seed in seeds:
            talk = tenants.converse(scene.load.http, scene.load.seen, random.Random(seed))
            tasks.create_task(talk)
    return f"{len(seeds)} agents of {tenants.NUM_TURNS} turns"


async def _no_descriptors(scene: Scene) -> str:
    """A worker can open nothing more: no file, no socket, no memory of a peer."""
    name = scene.draw.choice(scene.site.workers())
    pid = scene.site.stack.pids()[name]
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    num_open = len(os.listdir(f"/proc/{pid}/fd"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (num_open, hard))
    await asyncio.sleep(NO_DESCRIPTORS_S)
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
    return f"{name} with {num_open} open"


FAULTS: dict[str, Fault] = {
    **{
        f"{role} worker {what}": Fault(make(role))
        for role in ("prefill", "decode", "colocated")
        for what, make in {
            "killed": lambda role: _signal_worker(role, signal.SIGKILL),
            "stopped": _stop_worker,
            "slowed": _slow_worker,
            "drained": lambda role: _signal_worker(role, signal.SIGTERM),
        }.items()
    },
    "redis killed": Fault(_redis_killed, forgets=True),
    "redis stopped": Fault(_redis_stopped),
    "redis flushed": Fault(_redis_flushed, forgets=True),
    "redis full": Fault(_redis_full),
    "redis keys of another type": Fault(_keys_of_another_type),
    "clients vanish": Fault(_clients_vanish),
    "clients read slowly": Fault(_slow_readers),
    "bad bodies": Fault(_at_http(hostile.bad_bodies)),
    "bytes that are no HTTP": Fault(_at_http(hostile.no_http)),
    "idle connections": Fault(_at_http(hostile.idle_connections)),
    "scrapes": Fault(_at_http(hostile.scrapes)),
    "malformed frames": Fault(_at_channel(secret=True)),
    "a stranger on the channel": Fault(_at_channel(secret=False)),
    "a worker's name taken": Fault(_name_taken),
    "agents with tools": Fault(_agents),
    "no descriptors left": Fault(_no_descriptors),
    "coordinator stopped": Fault(_coordinator_stopped),
    "coordinator restarted": Fault(_signal_coordinator(signal.SIGTERM), closes=True),
    "coordinator killed": Fault(_signal_coordinator(signal.SIGKILL), breaks=True),
}


def possible(site: Site) -> list[str]:
    """Names of the faults for the roles that this site has, with at least two workers of each."""
    roles = {name.rpartition("-")[0] for name in site.workers()}
    lone = {role for role in roles if len(site.workers(role)) < 2}
    absent = ({"prefill", "decode", "colocated"} - roles) | lone
    return [name for name in FAULTS if name.split()[0] not in absent]


def sequence(names: list[str], draw: random.Random) -> "list[str]":
    """Every fault once, in random order: to be asked for again when it is used up."""
    return draw.sample(names, len(names))
