"""The coordinator process.

open     sockets, Redis record, tokenizer: a wrong setting shows before anything is served
serve    HTTP on one side, workers on the other, one event loop
drain    after SIGTERM or SIGINT: finish what is open, fail what is left (drain.py)
close    HTTP, channel, record
"""

import asyncio
import logging
import signal
import socket
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from coordinator.core.event_loop import freeze_startup_objects
from coordinator.core.hub import Hub
from coordinator.core.observer import Observer
from coordinator.core.settings import HubSettings, PlacementLimits
from coordinator.drain import StopSignals, drain, first_of
from coordinator.http.api import create_app
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.http_settings import HttpSettings
from coordinator.http.server.connections import Connections
from coordinator.http.server.http_server import CLOSE_TIMEOUT_S, HttpServer, listening_socket
from coordinator.http.server.open_files import allow_open_files
from coordinator.record.settings import ResponseLimits, StoreLimits
from coordinator.record.store import Store
from coordinator.text.dialect import Dialect
from coordinator.text.tokenizer import Tokenizer
from telemetry.metrics import Metrics
from telemetry.notify import notify
from transport.wire.channel import CoordinatorChannel
from transport.wire.channel_keys import ChannelKeys, is_loopback
from transport.wire.messages import PROTOCOL

log = logging.getLogger(__name__)

RECORD_TIMEOUT_S = 3.0
REJOIN_S = 3.0
"""How long workers get to join before connections are accepted that may have waited for long."""
PARSER_START_S = 30.0
"""A process that parses heavy bodies is started when everything else has been and the first
requests are served, unless one is needed before."""


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
    responses: ResponseLimits = field(default_factory=ResponseLimits)
    drain_timeout_s: float = 30.0
    hand_over: bool = False
    channel_keys: ChannelKeys | None = None
    redis_password: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError(f"port: {self.port} is not between 0 and 65535")
        if not self.drain_timeout_s >= 0:
            raise ValueError(f"drain_timeout_s: {self.drain_timeout_s} is not 0 or more")


def log_dialect(dialect: Dialect, folder: Path) -> None:
    """Log which dialect the checkpoint's chats have, and why; as a warning if the chat template has
    something that is not understood."""
    level = logging.WARNING if dialect.problems else logging.INFO
    log.log(level, "chats of %s: %s", folder, dialect.summary)


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
        listener = stack.enter_context(inherited or listening_socket(settings.host, settings.port))
        tokenizer = Tokenizer.load(settings.model)
        log_dialect(tokenizer.dialect, settings.model)
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
            endpoint=channel.endpoint, limits=settings.store, response_limits=settings.responses,
        )  # fmt: skip
        await store.start()
        stack.push_async_callback(store.close, RECORD_TIMEOUT_S)
        metrics = Metrics(settings.http.served_model_name)
        observer = Observer(metrics, store, instance)
        hub = Hub(channel, observer, instance, settings.hub, settings.limits)
        parsers = BodyParsers(settings.model)
        stack.callback(parsers.close)
        app = create_app(
            hub, tokenizer, settings.http, metrics, store, store.responses, parsers,
            now=observer.clock,
        )  # fmt: skip
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(hub.run(), name="hub")
            if inherited is not None:
                # Clients that wait there should not get a 503 because no workers have joined yet.
                await first_of(REJOIN_S, hub.all_roles_joined(), signals.stop.wait())
            connections = Connections(max_connections, metrics.http.evicted.inc)
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
            start_parser = loop.call_later(PARSER_START_S, parsers.start_one)
            stack.callback(start_parser.cancel)
            await signals.stop.wait()
            notify(STOPPING="1", STATUS="draining")
            due_at = loop.time() + settings.drain_timeout_s
            await drain(signals, hub, http, connections, settings.drain_timeout_s)
            http.exit_within(max(CLOSE_TIMEOUT_S, due_at - loop.time()))
            hub.stop()
