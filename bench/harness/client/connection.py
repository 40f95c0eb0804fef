"""One keep-alive HTTP/1.1 connection: one exchange at a time, every wait with a deadline.

Arriving bytes are stamped at once and only cut into HTTP here. Their content is read after the
exchange, so that on a small machine the clock measures the server and not our JSON parser.
"""

import asyncio
from time import perf_counter
from typing import cast

import httptools

from bench.harness.client.endpoint import Deadlines
from bench.harness.client.exchange import Exchange
from bench.harness.client.record import Failure

MAX_BODY_BYTES = 256 * 2**20


class Connection(asyncio.Protocol):
    """A connection of one client, which opens it and keeps it in its pool."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._done: asyncio.Future[None] | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._total: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self._ends_with_connection = False
        self.idle_since_s = perf_counter()

    @property
    def usable(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def carry(self, exchange: Exchange, request: bytes) -> None:
        """Send ``request`` and fill ``exchange`` until it has ended. Never raises for anything
        that the server does."""
        assert self._exchange is None, "one exchange at a time"
        if self._transport is None:
            exchange.end(Failure.DROPPED, "the connection ended before anything was sent")
            return
        self._exchange, self._done = exchange, self._loop.create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._ends_with_connection = True
        exchange.sent_at_s = perf_counter()
        self._transport.write(request)
        self._total = self._loop.call_later(self._deadlines.request_s, self._too_long)
        self._silence = self._loop.call_later(self._deadlines.first_byte_s, self._no_answer)
        try:
            await self._done
        finally:
            self._finish(Failure.CANCELLED, "cancelled")

    def abort(self) -> None:
        """End the exchange under way as cancelled, and close."""
        self._finish(Failure.CANCELLED, "the run was interrupted")
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        now = perf_counter()
        exchange = self._exchange
        if exchange is None or self._parser is None:
            self.close()  # an answer to nothing
            return
        if exchange.first_byte_at_s is None:
            exchange.first_byte_at_s = now
            self._watch_silence(self._deadlines.stall_s)
        exchange.last_byte_at_s = now
        exchange.num_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Failure.GARBAGE, f"not HTTP: {error}; got {data[:80]!r}")
            return
        if exchange.num_bytes > MAX_BODY_BYTES:
            self._fail(Failure.GARBAGE, f"a response of more than {MAX_BODY_BYTES} bytes")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        exchange = self._exchange
        if exchange is None:
            return
        if exchange.status is not None and self._ends_with_connection and exc is None:
            self._finish(None, "")
            return
        got = f"after {exchange.num_bytes} bytes" if exchange.num_bytes else "without an answer"
        self._finish(Failure.DROPPED, f"connection lost {got}" + (f": {exc}" if exc else ""))

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self._exchange is not None
        key = name.decode("latin-1").lower()
        self._exchange.headers[key] = value.decode("latin-1")
        if key in ("content-length", "transfer-encoding"):
            self._ends_with_connection = False

    def on_headers_complete(self) -> None:
        assert self._exchange is not None
        assert self._parser is not None
        self._exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchange
        if exchange is not None and exchange.last_byte_at_s is not None:
            exchange.pieces.append((exchange.last_byte_at_s, body))

    def on_message_complete(self) -> None:
        assert self._exchange is not None
        assert self._parser is not None
        if (self._exchange.status or 0) < 200:  # 100 Continue and the like
            self._exchange.headers.clear()
            self._ends_with_connection = True
            return
        keep = self._parser.should_keep_alive()
        self._finish(None, "")
        if not keep:
            self.close()

    # Deadlines and ends.

    def _no_answer(self) -> None:
        self._fail(Failure.STALLED, f"no byte within {self._deadlines.first_byte_s:g} s")

    def _watch_silence(self, after_s: float) -> None:
        if self._silence is not None:
            self._silence.cancel()
        self._silence = self._loop.call_later(after_s, self._maybe_stalled)

    def _maybe_stalled(self) -> None:
        """End a silent exchange, or set the timer again: one timer per arrival would cost more."""
        exchange = self._exchange
        if exchange is None or exchange.last_byte_at_s is None:
            return
        limit = self._deadlines.stall_s
        left = exchange.last_byte_at_s + limit - perf_counter()
        if left > 0:
            self._watch_silence(left)
        else:
            self._fail(Failure.STALLED, f"silent for {limit:g} s after {exchange.num_bytes} bytes")

    def _too_long(self) -> None:
        limit = self._deadlines.request_s
        got = self._exchange.num_bytes if self._exchange else 0
        self._fail(Failure.TIMEOUT, f"not complete within {limit:g} s; {got} bytes came")

    def _fail(self, failure: Failure, detail: str) -> None:
        self._finish(failure, detail)
        self.close()

    def _finish(self, failure: Failure | None, detail: str) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        for timer in (self._total, self._silence):
            if timer is not None:
                timer.cancel()
        exchange.end(failure, detail)
        self.idle_since_s = perf_counter()
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
