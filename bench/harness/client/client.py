"""The client: requests in, records out. What a server does wrong is a record, never an exception.

It is our own because its stamps must be near the arrivals. 64 streams that get an event each at the
same moment, as at the end of a decode step, are stamped this long after the event was written, on
two cores (``python -m tests.bench.client_times``, bench/results/client-times.json; ms):

    this client       p50 0.65    p99 1.7
    aiohttp 3.14.5    p50 1.89    p99 2.8
    httpx 0.28.1      p50 3.34    p99 7.2

A library wakes a task for each event before the task can look at the clock. An aiohttp connection
that looks at the clock itself needs a private interface, and is still 0.3 to 1.2 ms later (p50).

Connections are kept and reused, the youngest first. One that was idle for ``KEEP_ALIVE_S`` is
closed instead, since the server may be closing it at that moment.
"""

import asyncio
import ssl
from collections.abc import Mapping
from time import perf_counter

from bench.harness.client.asking import Ask
from bench.harness.client.connection import Connection
from bench.harness.client.endpoint import Deadlines, Endpoint
from bench.harness.client.exchange import Exchange
from bench.harness.client.reading import read
from bench.harness.client.record import Failure, Record

KEEP_ALIVE_S = 2.0


class Client:
    """Sends any number of requests at once, each on a connection of its own, on one event loop.

    Use as ``async with Client(endpoint) as client``.
    """

    def __init__(self, endpoint: Endpoint, deadlines: Deadlines | None = None) -> None:
        self.endpoint = endpoint
        self.deadlines = deadlines or Deadlines()
        self._tls = _tls(endpoint)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._opening: set[asyncio.Task[Connection]] = set()
        self._aborted = False

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.abort()

    async def send(self, ask: Ask, *, due_at_s: float | None = None) -> Record:
        """Send a completion request and read its answer; ``due_at_s`` (perf_counter) defaults to
        now."""
        return read(await self.exchange(ask, due_at_s=due_at_s))

    async def exchange(self, ask: Ask, *, due_at_s: float | None = None) -> Exchange:
        """Send a completion request; its raw answer is for ``reading.read`` when there is time."""
        return await self.request(
            "POST", ask.path, ask.content, headers=ask.headers, streamed=ask.stream,
            due_at_s=due_at_s,
        )  # fmt: skip

    async def get(self, path: str) -> Exchange:
        return await self.request("GET", path)

    async def request(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        streamed: bool = False,
        due_at_s: float | None = None,
    ) -> Exchange:
        """Make any HTTP exchange. A status other than 200 is no failure here. Never raises for
        anything that the server does."""
        due_at_s = perf_counter() if due_at_s is None else due_at_s
        exchange = Exchange(due_at_s, streamed)
        if self._aborted:
            exchange.end(Failure.CANCELLED, "the run was interrupted")
            return exchange
        connection = self._reuse() or await self._open(exchange)
        if connection is None:
            return exchange
        self._busy.add(connection)
        try:
            await connection.carry(exchange, self._bytes(method, path, content, headers or {}))
        finally:
            self._busy.discard(connection)
            if connection.usable and exchange.failure is None:
                self._idle.append(connection)
            else:
                connection.close()
        return exchange

    async def open(self, count: int) -> None:
        """Have ``count`` fresh connections ready, so that none is opened during a measurement. A
        connection that cannot be opened now is opened by the request that needs it."""
        kept, self._idle = self._idle, []
        for connection in kept:
            if _fresh(connection):
                self._idle.append(connection)
            else:
                connection.close()
        missing = max(0, count - len(self._idle))
        tasks = [self._connect() for _ in range(missing)]
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(found, Connection):
                self._idle.append(found)

    def abort(self) -> None:
        """End all requests under way as cancelled, and accept no more."""
        self._aborted = True
        for task in self._opening:
            task.cancel()
        for connection in [*self._busy, *self._idle]:
            connection.abort()
        self._idle.clear()

    def _reuse(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if _fresh(connection):
                return connection
            connection.close()
        return None

    async def _open(self, exchange: Exchange) -> Connection | None:
        task = asyncio.ensure_future(self._connect())
        self._opening.add(task)
        try:
            return await task
        except (OSError, ssl.SSLError) as error:  # TimeoutError is an OSError
            what = f"no connection within {self.deadlines.connect_s:g} s"
            said = what if isinstance(error, TimeoutError) else str(error)
            exchange.end(Failure.CONNECT, f"{self.endpoint.url}: {said}")
        except asyncio.CancelledError:
            if not self._aborted:
                raise
            exchange.end(Failure.CANCELLED, "the run was interrupted")
        finally:
            self._opening.discard(task)
        return None

    async def _connect(self) -> Connection:
        async with asyncio.timeout(self.deadlines.connect_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self.deadlines),
                self.endpoint.host,
                self.endpoint.port,
                ssl=self._tls,
            )
        return connection

    def _bytes(self, method: str, path: str, content: bytes, headers: Mapping[str, str]) -> bytes:
        lines = {
            "Host": self.endpoint.host_header,
            "User-Agent": "baton-bench",
            "Accept": "*/*",
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            **self.endpoint.headers(),
            **headers,
        }
        head = f"{method} {self.endpoint.prefix}{path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{head}\r\n".encode() + content


def _fresh(connection: Connection) -> bool:
    return connection.usable and connection.idle_since_s > perf_counter() - KEEP_ALIVE_S


def _tls(endpoint: Endpoint) -> ssl.SSLContext | None:
    if endpoint.scheme == "http":
        return None
    context = ssl.create_default_context()
    if not endpoint.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
