"""Connections to the coordinator's channel that fail the handshake: counted, and told of in one
line a minute at most.

NOTE: ZeroMQ refuses in silence; only the socket's monitor tells, and of whom it does not say.
"""

import logging
import math
import time
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from transport.channel_keys import SECRET

TELL_EVERY_S = 60.0

_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_MOST_A_LOOK = 500

log = logging.getLogger(__name__)


class StrangerWatch:
    """Watches one socket; must be made before it is bound, and closed before it is closed."""

    def __init__(
        self, socket: "zmq.Socket[Any]", *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._socket = socket
        self._clock = clock
        self._num_refused = 0
        self._tell_at = -math.inf
        self._watch()

    def look(self) -> None:
        """Count what was refused since the last look, and tell of it if it is time; never waits."""
        for _ in range(_MOST_A_LOOK):
            if not self._monitor.poll(0):
                break
            recv_monitor_message(self._monitor)
            self._num_refused += 1
        else:  # a flood: what has queued up beyond that is not worth the loop's time
            self.close()
            self._watch()
        now = self._clock()
        if self._num_refused and now >= self._tell_at:
            log.warning(
                "refused connections of strangers to the worker channel: the handshake failed; a "
                "worker's %s differs, or they are no workers",
                SECRET,
                extra={"connections": self._num_refused},
            )
            self._num_refused = 0
            self._tell_at = now + TELL_EVERY_S

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def _watch(self) -> None:
        endpoint = f"inproc://strangers-{id(self)}"
        self._socket.monitor(endpoint, _FAILED)
        # NOTE: a full queue of the monitor would stop ZeroMQ's thread.
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(
            self._socket.context.underlying
        )
        self._monitor = context.socket(zmq.PAIR)
        self._monitor.set_hwm(0)
        self._monitor.connect(endpoint)
