"""A way between a worker and its coordinator that can be cut."""

import asyncio
import os


class Cut:
    """A way to the coordinator that carries nothing while ``open`` is clear. Connections stay: as
    in a network that is cut, no end is told."""

    def __init__(self, endpoint: str) -> None:
        self.path = endpoint.removeprefix("ipc://")
        self._to = self.path
        self.open = asyncio.Event()
        self.open.set()
        self._tasks: list[asyncio.Task[None]] = []

    async def listen(self) -> str:
        self.server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        return f"tcp://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"

    async def take_over(self) -> None:
        """Carry what connects to the coordinator's own path from now on. Its present connections
        stay as they are."""
        self._to = f"{self.path}.own"
        os.rename(self.path, self._to)
        self.server = await asyncio.start_unix_server(self._carry, self.path)

    def give_back(self) -> None:
        """Let later connections reach the coordinator directly."""
        if self._to != self.path:
            os.rename(self._to, self.path)
            self._to = self.path

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(self._to)
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            self._tasks.append(asyncio.create_task(self._copy(source, sink)))

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            await self.open.wait()
            sink.write(data)
        sink.close()

    def close(self) -> None:
        self.give_back()
        self.server.close()
        for task in self._tasks:
            task.cancel()
