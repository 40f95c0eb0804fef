"""A request's body: bounded, received with a deadline, then prepared off the loop; if it is heavy,
in another process."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import account_of
from coordinator.http.body_reader import Job
from coordinator.http.errors import ApiError, quote
from coordinator.http.held_bytes import BodyBytes, HeldBytes
from coordinator.http.preparation import Prepared, prepared
from coordinator.http.readers import Readers
from coordinator.http.request_parser import Kind, check_long_fields, parse
from coordinator.http.while_connected import while_connected

LookUp = Callable[[bytes], Awaitable[bytes]]
HEAVY_BYTES = 64 * 1024
"""A body up to this size is parsed on the event loop: any takes 2 ms at most."""
_LINGER_S = 0.7


class BodyLimit:
    """Refuses a body over ``max_bytes`` with 413: by its declared length before any of it is
    read, else as soon as too much has come."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isascii() or not declared.isdigit():
            await ApiError(400, "Content-Length is not a number").response()(scope, receive, send)
            return
        num_bytes = int(declared) if len(declared) <= 18 else self._max_bytes + 1

        async def send_and_linger(message: Message) -> None:
            """NOTE: a connection that is closed while its client still writes is reset, and the
            client may never see the answer. So the answer leaves at once, but its end waits a
            moment while what is on its way is read and dropped."""
            last = message["type"] == "http.response.body" and not message.get("more_body")
            if not last or num_bytes <= self._max_bytes:
                await send(message)
                return
            await send({**message, "more_body": True})
            with suppress(TimeoutError):
                async with asyncio.timeout(_LINGER_S):
                    while (await receive()).get("more_body"):
                        pass
            await send({"type": "http.response.body", "body": b""})

        if num_bytes > self._max_bytes:
            await self._too_large().response()(scope, receive, send_and_linger)
            return
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self._max_bytes:
                raise self._too_large()
            return message

        await self._app(scope, receive_counted, send_and_linger)

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"the body is larger than {self._max_bytes} bytes",
            code="body_too_large",
            headers={"connection": "close"},
        )


class Bodies:
    """Receives and prepares the bodies of all requests; one for each app."""

    def __init__(self, context: AppContext, readers: Readers) -> None:
        self._context = context
        self._readers = readers
        self._bytes = BodyBytes(context.settings.max_held_body_bytes)
        self._settings = {
            name: value
            for name, value in vars(context.settings).items()
            # A reader has no keys, and is told the key by which a request is isolated.
            if name
            not in ("api_keys", "allowed_origins", "allowed_hosts", "prefix_cache_isolation")
        }

    async def generation(
        self, http: Request, kind: Kind, look_up: LookUp | None = None
    ) -> Prepared:
        """A request that generates, with the ids of its prompts; raises ApiError and ClientLeft.
        ``look_up`` finds what earlier responses hold of the conversation, by the JSON of the
        References of its body."""
        found = await self._prepared(http, kind, look_up)
        assert isinstance(found, Prepared)
        return found

    async def lookup(self, http: Request, kind: Kind) -> bytes:
        """The JSON that a count or a conversion of tokens gives; raises ApiError and ClientLeft."""
        found = await self._prepared(http, kind)
        assert isinstance(found, bytes)
        return found

    async def _prepared(
        self, http: Request, kind: Kind, look_up: LookUp | None = None
    ) -> Prepared | bytes:
        encoding = http.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            message = f"Content-Encoding {quote(encoding)} is not supported; send the body as it is"
            raise ApiError(415, message, code="unsupported_media_type")
        held = self._bytes.hold(owner_of(http))
        try:
            pieces = await self._receive(http, held)
            earlier = b""
            if look_up is not None:
                references = await self._read(http, "references", pieces)
                assert isinstance(references, bytes)
                earlier = await look_up(references)
                held.add(len(earlier))
            return await self._read(http, kind, pieces, earlier)
        finally:
            held.release()

    async def _read(
        self, http: Request, kind: Kind, body: Sequence[bytes], earlier: bytes = b""
    ) -> Prepared | bytes:
        context, owner = self._context.of_key(account_of(http.scope).name), owner_of(http)
        num_bytes = sum(map(len, body))
        if num_bytes + len(earlier) > HEAVY_BYTES:
            check_long_fields(body)
            job = Job(
                kind,
                context.core.max_seq_len,
                self._settings,
                num_bytes,
                earlier,
                context.isolated_key,
            )
            work = self._readers.read(owner, job, body)
        else:
            request = parse(kind, b"".join(body))
            if kind == "references":
                return prepared(context, kind, request)
            aside = kind in ("count_tokens", "tokenize", "detokenize")
            work = context.tokenizer.run(prepared, context, kind, request, earlier, aside=aside)
        return await while_connected(work, http.receive)

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


def owner_of(http: Request) -> str:
    """The owner of a body: its API key's name, or without keys the client's address. The heavy
    bodies of one owner wait for one another."""
    return account_of(http.scope).name or (http.client.host if http.client else "")
