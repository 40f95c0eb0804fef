"""Watches a worker's socket to learn whether the coordinator accepts its connection.

NOTE: ZeroMQ does not report a refused handshake to the sender. A peer with other keys closes the
connection, or reports an error once and is never tried again; in both cases queued messages stay
queued. Only the socket's monitor has the events.
"""

import math
from collections.abc import Callable

import zmq
from zmq.utils.monitor import recv_monitor_message

from transport.wire.errors import ChannelRefused
from transport.wire.secret_setting import CHANNEL_SECRET
from transport.wire.socket_reader import has_message

REFUSED_AFTER_S = 5.0

_FINAL = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_DISCONNECTED
    | _FINAL
)


class HandshakeWatch:
    """Watches one socket. Must be made before the socket connects, and closed before the socket.

    A connection that breaks looks like a refusal by a peer with another secret, and ZeroMQ tries
    both again. So only failures that follow each other for ``refused_after_s`` count as a refusal.
    Where no peer listens there is no failure.
    """

    def __init__(
        self,
        socket: "zmq.Socket[bytes]",
        endpoint: str,
        *,
        has_secret: bool,
        refused_after_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._socket = socket
        self._endpoint = endpoint
        self._has_secret = has_secret
        self._refused_after_s = refused_after_s
        self._clock = clock
        self._failing_since = self._failed_at = -math.inf
        self._refused = False
        self._connected = False
        self._closed_at = math.inf
        self._monitor = socket.get_monitor_socket(_EVENTS)

    def check(self) -> None:
        """Raise ChannelRefused once the coordinator has refused this worker; never waits."""
        self._read()
        if self._refused:
            raise self.refused()

    def connected(self) -> bool:
        """True if a coordinator that accepted this worker is connected now; never waits."""
        self._read()
        return self._connected

    def closed_s(self) -> float:
        """For how long the connection has been closed; 0.0 while there is one, or never was one."""
        self._read()
        return max(0.0, self._clock() - self._closed_at)

    def _read(self) -> None:
        while has_message(self._monitor):
            event = recv_monitor_message(self._monitor)["event"]
            was, self._connected = self._connected, event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if was != self._connected:
                self._closed_at = self._clock() if was else math.inf
            if self._connected:
                self._failed_at = -math.inf
            elif event & _FINAL:
                self._refused = True
            elif event != zmq.EVENT_DISCONNECTED:
                self._failed()

    def _failed(self) -> None:
        now = self._clock()
        if now - self._failed_at > self._refused_after_s:
            self._failing_since = now
        self._failed_at = now
        if now - self._failing_since >= self._refused_after_s:
            self._refused = True

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def refused(self) -> ChannelRefused:
        """The error for a worker that was refused."""
        ours = "this worker has one" if self._has_secret else "this worker has none"
        return ChannelRefused(
            f"the coordinator at {self._endpoint} refuses the handshake: {CHANNEL_SECRET} "
            f"differs between the two ({ours})"
        )
