"""Reads messages from a ZeroMQ socket in a callback of the event loop.

A worker may wait for the reaction to a message. With zmq.asyncio a task would wait for the message,
and run one turn of the event loop later.

NOTE: a ZeroMQ socket's descriptor becomes readable at changes only, and a look at the socket, also
by sending, takes that back. So after each look the socket is read until it has no message.
"""

import asyncio
import time
from collections.abc import Callable

import zmq

Frames = list[bytes]


class SocketReader:
    """Reads one socket, on one event loop."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._look: Callable[[], None] | None = None
        self._looking = self._will_look = False

    async def deliver(self, take: Callable[[Frames], None], *, turn_s: float) -> None:
        """Call ``take`` with every message, until cancelled. While messages wait, other tasks get
        the event loop every ``turn_s``. Raises what ``take`` raises."""
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[None] = loop.create_future()

        def look() -> None:
            self._will_look = False
            if failed.done():
                return
            self._looking = True
            try:
                self._read(take, turn_s)
            except Exception as error:
                failed.set_exception(error)
            finally:
                self._looking = False

        def changed() -> None:
            if not self._will_look:
                look()

        self._look, readable = look, descriptor(self._socket)
        loop.add_reader(readable, changed)
        self._look_soon()
        try:
            await failed
        finally:
            loop.remove_reader(readable)
            failed.cancel()
            self._look = None

    def has_sent(self) -> None:
        """Note a send on the socket, successful or not; call it after each."""
        if not (self._looking or self._will_look) and has_message(self._socket):
            self._look_soon()

    def _look_soon(self) -> None:
        if self._look is not None:
            self._will_look = True
            asyncio.get_running_loop().call_soon(self._look)

    def _read(self, take: Callable[[Frames], None], turn_s: float) -> None:
        began = time.monotonic()
        while has_message(self._socket):
            take(self._socket.recv_multipart())
            if time.monotonic() - began >= turn_s:
                self._look_soon()
                return


def has_message(socket: "zmq.Socket[bytes]") -> bool:
    """True if the socket has a message to be received now."""
    events = socket.getsockopt(zmq.EVENTS)
    assert isinstance(events, int)
    return bool(events & zmq.POLLIN)


def descriptor(socket: "zmq.Socket[bytes]") -> int:
    """The socket's file descriptor, which is readable after a change of the socket."""
    number = socket.getsockopt(zmq.FD)
    assert isinstance(number, int)
    return number
