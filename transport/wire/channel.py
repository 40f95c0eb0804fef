"""The typed ZeroMQ channel between the coordinator and its workers.

frames.py has what a frame is made of. Order within a connection is kept. Queues are unbounded: the
coordinator's limits on open requests bound them, not the socket. Each end drops and counts frames
that do not decode. A frame of more than ``MAX_FRAME_BYTES`` closes its connection before it is
read.

With keys (channel_keys.py) both ends prove that they know the secret before a frame passes, and
every frame is encrypted. Without keys the channel accepts only endpoints that other machines cannot
reach. identities.py says to whom a connection belongs.
"""

import hmac
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from transport.wire.channel_keys import ChannelKeys, require_keys
from transport.wire.errors import MalformedMessage, WireError
from transport.wire.frames import from_worker, to_worker
from transport.wire.handshake import REFUSED_AFTER_S, HandshakeWatch
from transport.wire.identities import Peers, instance_of, new_identity
from transport.wire.messages import PROTOCOL, FromWorker, ToWorker, encode
from transport.wire.socket_reader import SocketReader, descriptor, has_message
from transport.wire.unverified_peers import UnverifiedPeers

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 << 20
"""Far more than the largest message: an order with a million token ids has 5 MB."""
_ZAP_DOMAIN = "baton"
_LINGER_S = 0.3
# ZeroMQ waits up to twice as long; a live worker has reconnected before it is taken for dead
# (coordinator/core/workers/connections.py).
_RECONNECT_MS = 20
_RECONNECT_MAX_MS = 250
_CONNECT_TIMEOUT_MS = 2_000
_LOOK_UP_S = 0.1


class WorkerChannel:
    """A worker's end of the channel. ``malformed_dropped`` counts the frames of this protocol that
    did not decode."""

    def __init__(
        self,
        endpoint: str,
        instance: str,
        *,
        keys: ChannelKeys | None = None,
        protocol: str = PROTOCOL,
        refused_after_s: float = REFUSED_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect to ``endpoint``; raises ValueError if that needs ``keys`` and there are none."""
        require_keys("coordinator", endpoint, keys)
        self.endpoint = endpoint
        self.malformed_dropped = 0
        self._protocol = protocol.encode()
        self._identity = new_identity(instance)
        self._keys = keys
        self._refused_after_s = refused_after_s
        self._clock = clock
        self._context = zmq.Context()
        self._woken: int | None = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)
        self._connect()

    def _connect(self) -> None:
        keys = self._keys
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, self._identity)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS)
        self._socket.setsockopt(zmq.CONNECT_TIMEOUT, _CONNECT_TIMEOUT_MS)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.set_hwm(0)
        if keys is not None:
            self._socket.setsockopt(zmq.CURVE_SERVERKEY, keys.coordinator.public)
            self._socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.worker.public)
            self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.worker.secret)
        self._handshakes = HandshakeWatch(
            self._socket,
            self.endpoint,
            has_secret=keys is not None,
            refused_after_s=self._refused_after_s,
            clock=self._clock,
        )
        self._socket.connect(self.endpoint)
        self._poll.register(descriptor(self._socket), select.POLLIN)

    @property
    def connected(self) -> bool:
        """True if a coordinator that accepted this worker is connected now; never waits."""
        return self._handshakes.connected()

    @property
    def closed_s(self) -> float:
        """For how long the connection has been closed; 0.0 while there is one, or never was one."""
        return self._handshakes.closed_s()

    def renew(self) -> None:
        """Replace the connection by a new one and drop what is queued on it. TCP may retry a dead
        connection only after minutes."""
        self._poll.unregister(descriptor(self._socket))
        self._handshakes.close()
        self._socket.close(linger=0)
        self._connect()

    def send(self, message: FromWorker) -> None:
        """Queue a message. Raises ChannelRefused when the coordinator has refused this worker.

        NOTE: after an explicit refusal of the handshake ZeroMQ does not connect again, and a send
        that waits would wait forever.
        """
        try:
            self._socket.send_multipart((self._protocol, encode(message)), zmq.NOBLOCK)
        except zmq.Again:
            raise self._handshakes.refused() from None

    def receive(self, timeout_s: float, *, awake_s: float = 0.0) -> list[ToWorker]:
        """All messages that have come. Waits at most ``timeout_s`` for the first message or for
        ``wake``. During the first ``awake_s`` it polls for messages only, without sleep: a
        processor that sleeps takes time to wake up, and loses its caches.

        Raises ProtocolMismatch, or ChannelRefused when no message can come. A malformed frame is
        dropped: the coordinator learns of the lost order from the next heartbeats, and this
        worker's other requests go on.
        """
        frames = self._receive_now()
        if frames is None and timeout_s > 0:
            self._wait(timeout_s, awake_s)
            frames = self._receive_now()
        if frames is None:
            self._handshakes.check()
            return []
        messages = []
        while frames is not None:
            try:
                messages.append(to_worker(frames, ours=self._protocol))
            except MalformedMessage as error:
                self.malformed_dropped += 1
                log.error("dropped a malformed message: %s", error)
            frames = self._receive_now()
        return messages

    def wake(self) -> None:
        """End the wait of the current ``receive`` or of the next; a signal handler may call it."""
        if self._woken is not None:
            os.eventfd_write(self._woken, 1)

    def close(self) -> None:
        """Send what is still queued, 0.3 s at most, and close; at once without a coordinator.

        NOTE: ZeroMQ resolves the coordinator's name in the thread that has to end here. Where the
        name is gone with the coordinator, that takes seconds, and the thread is left behind.
        """
        connected = self.connected
        self._handshakes.close()
        self._socket.close(linger=round(_LINGER_S * 1000) if connected else 0)
        woken, self._woken = self._woken, None
        if woken is not None:
            os.close(woken)
        ending = threading.Thread(target=self._context.term, name="zmq-end", daemon=True)
        ending.start()
        ending.join(_LOOK_UP_S + (_LINGER_S if connected else 0.0))

    def _receive_now(self) -> list[bytes] | None:
        """The frames of the next message that has come; None if there is none."""
        return self._socket.recv_multipart() if has_message(self._socket) else None

    def _wait(self, timeout_s: float, awake_s: float) -> None:
        """Return when a message has come, at ``wake``, or after ``timeout_s``."""
        began = time.monotonic()
        deadline, awake_until = began + timeout_s, began + min(awake_s, timeout_s)
        while time.monotonic() < awake_until:
            if has_message(self._socket):
                return
            os.sched_yield()  # on a busy machine: to ZeroMQ's thread, which receives
        while (left_s := deadline - time.monotonic()) > 0:
            ready = dict(self._poll.poll(round(left_s * 1000)))
            if self._woken is not None and self._woken in ready:
                os.eventfd_read(self._woken)
                return
            # NOTE: the socket's descriptor is readable at any change, also when it has sent.
            if not ready or has_message(self._socket):
                return


class CoordinatorChannel:
    """The coordinator's end of the channel; workers are addressed by their instance id."""

    def __init__(
        self, endpoint: str, *, keys: ChannelKeys | None = None, protocol: str = PROTOCOL
    ) -> None:
        """Bind ``endpoint``; raises ValueError, which names it, if that is not possible or needs
        ``keys``. With keys a running event loop is required, since it answers handshakes."""
        require_keys("bind", endpoint, keys)
        self._protocol = protocol.encode()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        self._socket.set_hwm(0)
        self._peers = Peers()
        self._reader = SocketReader(self._socket)
        self._unverified = UnverifiedPeers(self._socket)
        self._authenticator: AsyncioAuthenticator | None = None
        if keys is not None:
            self._admit_only(keys)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise ValueError(f"bind: cannot listen on {endpoint!r}: {error}") from error
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def send(self, instance: str, message: ToWorker) -> bool:
        """Queue a message; False when no such worker is connected."""
        identity = self._peers.identity(instance)
        if identity is None:
            return False
        try:
            self._socket.send_multipart((identity, self._protocol, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False
        finally:
            self._reader.has_sent()
        return True

    async def deliver(
        self, take: Callable[[str, FromWorker | WireError], None], *, turn_s: float
    ) -> None:
        """Call ``take`` with every message and its sender, until cancelled; other tasks get the
        event loop every ``turn_s``. An error is passed to ``take`` instead of raised: a faulty
        worker must not end the loop that serves the others. ``send`` cannot send to a sender whose
        identity has no instance id, or the instance id of another connection."""
        await self._reader.deliver(lambda frames: take(*self._read(frames)), turn_s=turn_s)

    def keep(self, instances: Iterable[str]) -> None:
        """Forget which connections belong to other instances; call it at every heartbeat. Until
        then no other connection can speak for an instance that has spoken."""
        self._peers.keep(instances)

    def log_unverified(self) -> None:
        """Log how many connections were refused, at most once a minute; call it at every
        heartbeat."""
        self._unverified.look()

    def on_ended(self, one_ended: Callable[[], None]) -> None:
        """Call ``one_ended`` whenever a connection has ended, on the running loop until this
        channel is closed. ZeroMQ does not say which connection it was."""
        self._unverified.on_ended(one_ended)

    def close(self) -> None:
        self._unverified.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        self._socket.close()
        self._context.term()

    def _read(self, frames: list[bytes]) -> tuple[str, FromWorker | WireError]:
        identity, *rest = frames
        instance, message = from_worker(identity, rest, ours=self._protocol)
        if instance_of(identity) is None or self._peers.owns(instance, identity):
            return instance, message
        error = MalformedMessage(f"{instance} has another connection")
        return f"a second connection of {instance}", error

    def _admit_only(self, keys: ChannelKeys) -> None:
        self._socket.setsockopt(zmq.CURVE_SERVER, 1)
        self._socket.setsockopt(zmq.CURVE_SECRETKEY, keys.coordinator.secret)
        self._socket.setsockopt_string(zmq.ZAP_DOMAIN, _ZAP_DOMAIN)
        self._authenticator = AsyncioAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(_ZAP_DOMAIN, _OneKey(keys.worker.public))


class _OneKey:
    """Tells ZeroMQ whether a client's public key is accepted."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return hmac.compare_digest(key, self._public)
