"""A session as a command has it, of a server that is known."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.harness.client.client import Client
from bench.harness.client.endpoint import Deadlines, endpoint
from bench.harness.conduct import Session
from bench.harness.progress import Progress
from bench.harness.run_control import Patience, RunControl
from bench.harness.server_info import ServerInfo


@asynccontextmanager
async def session(
    url: str,
    model: str = "stub",
    deadlines: Deadlines | None = None,
    patience: Patience | None = None,
) -> AsyncIterator[Session]:
    where = endpoint(url)
    async with Client(where, deadlines) as client, Client(where, deadlines) as aside:
        server = ServerInfo(where.url, model, None, None, None)
        control = RunControl(client, patience or Patience())
        yield Session(client, aside, server, control, Progress())
