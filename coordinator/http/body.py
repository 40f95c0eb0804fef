"""A request's body: received with a deadline, then prepared off the loop; if it is heavy, in
another process."""

import asyncio

from starlette.requests import Request

from coordinator.http.accounts import account_of
from coordinator.http.app_context import AppContext
from coordinator.http.body_bytes import BodyBytes, HeldBytes
from coordinator.http.connection import while_connected
from coordinator.http.errors import ApiError
from coordinator.http.preparation import Prepared, parse, prepared
from coordinator.http.reader_wire import Job, Kind
from coordinator.http.readers import Readers

HEAVY_BYTES = 64 * 1024
"""A body up to here is parsed on the loop: whatever it holds is soon read."""


class Bodies:
    """Those of all requests; one for each app."""

    def __init__(self, context: AppContext, readers: Readers) -> None:
        self._context = context
        self._readers = readers
        self._bytes = BodyBytes(context.settings.max_held_body_bytes)
        self._told = {name: at for name, at in vars(context.settings).items() if name != "api_keys"}

    async def generation(self, http: Request, kind: Kind) -> Prepared:
        """The request of a chat or a completion, with the ids of its prompts; raises ApiError and
        ClientLeft."""
        found = await self._prepared(http, kind)
        assert isinstance(found, Prepared)
        return found

    async def lookup(self, http: Request, kind: Kind) -> bytes:
        """The JSON of what /tokenize or /detokenize answers; raises ApiError and ClientLeft."""
        found = await self._prepared(http, kind)
        assert isinstance(found, bytes)
        return found

    async def _prepared(self, http: Request, kind: Kind) -> Prepared | bytes:
        context, owner = self._context, _owner(http)
        held = self._bytes.hold(owner)
        try:
            pieces = await self._receive(http, held)
            if held.num_bytes > HEAVY_BYTES:
                job = Job(kind, context.core.max_seq_len, self._told, held.num_bytes)
                work = self._readers.read(owner, job, pieces)
            else:
                request = parse(context, kind, b"".join(pieces))
                aside = kind in ("tokenize", "detokenize")
                work = context.tokenizer.run(prepared, context, kind, request, aside=aside)
            return await while_connected(work, http.receive)
        finally:
            held.release()

    async def _receive(self, http: Request, held: HeldBytes) -> list[bytes]:
        # NOTE: Request.body() would keep it for as long as the response takes.
        pieces: list[bytes] = []
        timeout_s = self._context.settings.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in http.stream():
                    held.add(len(piece))
                    pieces.append(piece)
        except TimeoutError:
            message = f"the body did not arrive within {timeout_s:g} s"
            raise ApiError(408, message, code="request_timeout") from None
        return pieces


def _owner(http: Request) -> str:
    """Whose heavy bodies wait for one another: a key's, or without keys an address's."""
    return account_of(http.scope).name or (http.client.host if http.client else "")
