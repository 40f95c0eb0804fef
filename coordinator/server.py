"""The coordinator process.

open     sockets, Redis record, tokenizer: a wrong setting shows before anything is served
serve    HTTP on one side, workers on the other, one event loop
drain    after SIGTERM or SIGINT: finish what is open, fail what is left (drain.py)
close    HTTP, channel, record
"""

import asyncio
import logging
import math
import signal
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

import uvicorn
from fastapi import FastAPI

from coordinator.core.event_loop import freeze_startup_objects
from coordinator.core.hub import Hub
from coordinator.core.hub_settings import HubSettings
from coordinator.core.observer import Observer
from coordinator.core.placement import PlacementLimits
from coordinator.drain import StopSignals, drain, first_of
from coordinator.http.api import create_app
from coordinator.http.connections import AcceptThrottle, Connections, allow_open_files
from coordinator.http.head_deadline import HeadDeadline
from coordinator.http.http_settings import HttpSettings
from coordinator.http.readers import Readers
from coordinator.record.settings import KeepLimits, StoreLimits
from coordinator.record.store import Store
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from telemetry.notify import notify
from transport.wire.channel import CoordinatorChannel
from transport.wire.channel_keys import ChannelKeys, is_loopback
from transport.wire.messages import PROTOCOL

log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 5.0
RECORD_TIMEOUT_S = 3.0
REJOIN_S = 3.0
"""How long workers get to join before connections are accepted that may have waited for long."""
_BACKLOG = 65_535  # the kernel takes net.core.somaxconn if that is less


@dataclass(frozen=True)
class CoordinatorSettings:
    """``bind`` is the ZeroMQ endpoint for workers, ``channel_keys`` those of the workers' channel;
    None: any process of this machine may join. ``model`` is the folder with the tokenizer.
    ``hand_over``: a proxy in front keeps what comes while this process restarts (drain.py)."""

    host: str
    port: int
    bind: str
    redis_url: str
    model: Path
    http: HttpSettings
    hub: HubSettings = field(default_factory=HubSettings)
    limits: PlacementLimits = field(default_factory=PlacementLimits)
    store: StoreLimits = field(default_factory=StoreLimits)
    keep: KeepLimits = field(default_factory=KeepLimits)
    drain_timeout_s: float = 30.0
    hand_over: bool = False
    channel_keys: ChannelKeys | None = None
    redis_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port: {self.port} is not between 0 and 65535")
        if self.drain_timeout_s < 0:
            raise ValueError(f"drain_timeout_s: {self.drain_timeout_s} is negative")


async def serve(settings: CoordinatorSettings, inherited: socket.socket | None = None) -> None:
    """Run until SIGTERM or SIGINT, on the listening socket that was ``inherited``, if one was.
    Raises ValueError, OSError or BatonError before serving."""
    instance = f"coordinator-{token_hex(4)}"
    signals = StopSignals(has_successor=settings.hand_over or inherited is not None)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, signals.terminate)
    loop.add_signal_handler(signal.SIGINT, signals.interrupt)
    max_connections = allow_open_files("max_open", settings.hub.max_open)
    async with AsyncExitStack() as stack:
        listener = stack.enter_context(inherited or _listen(settings.host, settings.port))
        tokenizer = Tokenizer.load(settings.model)
        stack.callback(tokenizer.close)
        tokenizer.grammar_checks.start()
        if settings.hub.max_open_tokens < tokenizer.info.max_position:
            raise ValueError(
                f"max_open_tokens: {settings.hub.max_open_tokens} is under the model's context of "
                f"{tokenizer.info.max_position} tokens"
            )
        channel = CoordinatorChannel(settings.bind, keys=settings.channel_keys)
        stack.callback(channel.close)
        store = Store(
            settings.redis_url, instance, PROTOCOL, redis_password=settings.redis_password,
            endpoint=channel.endpoint, limits=settings.store, keep=settings.keep,
        )  # fmt: skip
        await store.start()
        stack.push_async_callback(store.close, RECORD_TIMEOUT_S)
        metrics = Metrics(settings.http.served_model_name)
        observer = Observer(metrics, store, instance)
        hub = Hub(channel, observer, instance, settings.hub, settings.limits)
        readers = Readers(settings.model)
        stack.callback(readers.close)
        app = create_app(
            hub, tokenizer, settings.http, metrics, store, readers=readers, now=observer.clock,
            kept=store.responses,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hub.run(), name="hub")
            if inherited is not None:
                # Clients that wait there should not get a 503 because no workers have joined yet.
                await first_of(REJOIN_S, hub.complete(), signals.stop.wait())
            connections = Connections(max_connections, metrics.http_evicted.inc)
            shared = inherited is not None
            http = HttpServer(app, listener, settings.http, connections, listener_is_shared=shared)
            tasks.create_task(http.serve(), name="http")
            await http.is_open.wait()  # before that there is nothing to stop
            freeze_startup_objects()
            if not settings.http.api_keys and not is_loopback(settings.host):
                log.warning(
                    "no API keys are set: every client that reaches %s is served", settings.host
                )
            notify(READY="1", STATUS=f"listening on {settings.host}:{listener.getsockname()[1]}")
            log.info("%s listens on %s:%d", instance, *listener.getsockname()[:2])
            await signals.stop.wait()
            notify(STOPPING="1", STATUS="draining")
            due_at = loop.time() + settings.drain_timeout_s
            await drain(signals, hub, http, connections, settings.drain_timeout_s)
            http.exit_within(max(CLOSE_TIMEOUT_S, due_at - loop.time()))
            hub.stop()


class HttpServer(uvicorn.Server):
    """uvicorn behind an AcceptThrottle, without its own signal handling: draining comes before
    closing."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        settings: HttpSettings,
        connections: Connections,
        *,
        listener_is_shared: bool = False,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._listener_is_shared = listener_is_shared
        self._connections = connections
        self.is_open = asyncio.Event()
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=HeadDeadline,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=math.ceil(CLOSE_TIMEOUT_S),
        )
        super().__init__(config)

    def exit_within(self, timeout_s: float) -> None:
        """Take no more connections, and end once every answer has been taken by its client; after
        ``timeout_s`` cut off what is left."""
        self.config.timeout_graceful_shutdown = math.ceil(timeout_s)
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        self._throttle = AcceptThrottle(self._listener, self._protocol, self._connections)
        self._throttle.open()
        self.is_open.set()

    def hand_over(self) -> None:
        """Accept no more connections, and close each with the end of its next answer. Those that
        come later are refused by the kernel, unless another process keeps the listener."""
        self._throttle.stop()
        if not self._listener_is_shared:
            self._listener.close()
        self._connections.closing = True
        for connection in list(self.server_state.connections):
            assert isinstance(connection, HeadDeadline), "a connection of another protocol"
            connection.close_after_answer()

    def accept_again(self) -> None:
        """Accept connections again, since no other process will."""
        if self._listener_is_shared:
            self._throttle.open()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._throttle.close()
        await super().shutdown(sockets=[])
        if self.server_state.tasks:  # they were cancelled, and note what they had not sent
            await asyncio.wait(self.server_state.tasks, timeout=CLOSE_TIMEOUT_S)

    def _protocol(self) -> asyncio.Protocol:
        return HeadDeadline(
            self.config,
            self.server_state,
            self.lifespan.state,
            self._settings,
            self._connections,
        )

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise ValueError(f"port: cannot listen on {host}:{port}: {reason}") from None
