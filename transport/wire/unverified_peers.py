"""Watches the coordinator's socket for peers that fail the handshake, and for ended connections.

Failed handshakes are counted, and logged at most once a minute; ended connections are reported at
once.

NOTE: ZeroMQ reports both only through the socket's monitor, without the peer's name. A socket has
one monitor.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from transport.wire.secret_setting import CHANNEL_SECRET

LOG_EVERY_S = 60.0

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_MAX_EVENTS_PER_LOOK = 500

log = logging.getLogger(__name__)


class UnverifiedPeers:
    """Counts the refused connections of one socket. Must be made before the socket is bound, and
    closed before the socket."""

    def __init__(
        self, socket: "zmq.Socket[Any]", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = socket
        self._clock = clock
        self._num_refused = 0
        self._log_at = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._one_ended: Callable[[], None] = lambda: None
        self._first_look: asyncio.Handle | None = None
        self._num_monitors = 0
        self._watch()

    def on_ended(self, one_ended: Callable[[], None]) -> None:
        """Read events as they come, on the running loop until closed; call ``one_ended`` when a
        connection has ended."""
        self._loop, self._one_ended = asyncio.get_running_loop(), one_ended
        self._listen()

    def look(self) -> None:
        """Count the handshakes that failed since the last call, and log them if the last log line
        is old enough; never waits."""
        ended = False
        for _ in range(_MAX_EVENTS_PER_LOOK):
            if not self._monitor.poll(0):
                break
            event = recv_monitor_message(self._monitor)["event"]
            ended = ended or event == zmq.EVENT_DISCONNECTED
            self._num_refused += event != zmq.EVENT_DISCONNECTED
        else:  # too many events for one turn of the loop: drop the rest
            ended = True
            self.close()
            self._watch()
        if ended:
            self._one_ended()
        now = self._clock()
        if self._num_refused and now >= self._log_at:
            log.warning(
                "refused connections of unverified peers to the worker channel: the handshake "
                "failed; a worker's %s differs, it ended meanwhile, or the peer is no worker",
                CHANNEL_SECRET,
                extra={"connections": self._num_refused},
            )
            self._num_refused = 0
            self._log_at = now + LOG_EVERY_S

    def close(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self._descriptor)
        if self._first_look is not None:
            self._first_look.cancel()
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def _watch(self) -> None:
        self._num_monitors += 1  # the name of the monitor before may still be taken
        endpoint = f"inproc://unverified-{id(self)}-{self._num_monitors}"
        self._socket.monitor(endpoint, _FAILED | zmq.EVENT_DISCONNECTED)
        # NOTE: a full queue of the monitor would stop ZeroMQ's thread.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(
            self._socket.context.underlying
        )
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set_hwm(0)
        self._monitor.connect(endpoint)
        self._listen()

    def _listen(self) -> None:
        if self._loop is not None:
            # NOTE: this descriptor is readable at changes only, and not before the first look.
            self._loop.add_reader(self._descriptor, self.look)
            self._first_look = self._loop.call_soon(self.look)

    @property
    def _descriptor(self) -> int:
        return int(self._monitor.getsockopt(zmq.FD))
