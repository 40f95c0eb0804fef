"""Receives the body of a request with a deadline, and prepares it off the event loop; a heavy one
in another process."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence

from starlette.requests import Request

from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import account_of
from coordinator.http.bodies.held_bytes import BodyBytes, HeldBytes
from coordinator.http.bodies.parsers import BodyParsers
from coordinator.http.bodies.wire import Job
from coordinator.http.body_checks import check_long_fields
from coordinator.http.errors import ApiError, body_overdue, quote
from coordinator.http.preparation import Kind, Prepared, parse, prepare
from coordinator.http.while_connected import while_connected

LookUp = Callable[[bytes], Awaitable[bytes]]
HEAVY_BYTES = 64 * 1024
"""A body up to this size is parsed on the event loop: any takes 2 ms at most."""


# A parser has no keys; it is told the key that isolates a request.
_NOT_FOR_PARSERS = frozenset({
    "api_keys", "operator_keys", "allowed_origins", "allowed_hosts",
    "prefix_cache_isolation", "root_path",
})  # fmt: skip


class Bodies:
    """Receives and prepares the bodies of all requests; one per app."""

    def __init__(self, context: AppContext, parsers: BodyParsers) -> None:
        self._context = context
        self._parsers = parsers
        self._bytes = BodyBytes(context.settings.max_held_body_bytes)
        self._settings = {
            name: value
            for name, value in vars(context.settings).items()
            if name not in _NOT_FOR_PARSERS
        }

    async def generation(
        self, http: Request, kind: Kind, look_up: LookUp | None = None
    ) -> Prepared:
        """Receive a request that generates, with the ids of its prompts; raises ApiError and
        ClientDisconnected. ``look_up`` returns what earlier responses hold of the conversation,
        given the JSON of the body's References."""
        found = await self._prepared(http, kind, look_up)
        assert isinstance(found, Prepared)
        return found

    async def lookup(self, http: Request, kind: Kind, look_up: LookUp | None = None) -> bytes:
        """Receive a request to count or convert tokens, and return the JSON of its answer; raises
        ApiError and ClientDisconnected. ``look_up`` is that of ``generation``."""
        found = await self._prepared(http, kind, look_up)
        assert isinstance(found, bytes)
        return found

    async def _prepared(
        self, http: Request, kind: Kind, look_up: LookUp | None = None
    ) -> Prepared | bytes:
        _check_is_json(http.headers.get("content-type", ""))
        encoding = http.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", ""):
            message = f"Content-Encoding {quote(encoding)} is not supported; send the body as it is"
            raise ApiError(415, message, code="unsupported_media_type")
        held = self._bytes.hold(owner_of(http))
        try:
            pieces = await self._receive(http, held)
            earlier = b""
            if look_up is not None:
                references = await self._parse(http, "references", pieces)
                assert isinstance(references, bytes)
                earlier = await look_up(references)
                held.add(len(earlier))
            return await self._parse(http, kind, pieces, earlier)
        finally:
            held.release()

    async def _parse(
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
            work = self._parsers.parse(owner, job, body)
        else:
            request = parse(kind, b"".join(body))
            if kind == "references":
                return prepare(context, kind, request)
            aside = kind in ("count_tokens", "tokenize", "detokenize", "input_tokens")
            work = context.tokenizer.run(prepare, context, kind, request, earlier, aside=aside)
        return await while_connected(work, http.receive)

    async def _receive(self, http: Request, held: HeldBytes) -> list[bytes]:
        # NOTE: Request.body() would keep the body until the response has ended.
        pieces: list[bytes] = []
        timeout_s = self._context.settings.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                async for piece in http.stream():
                    held.add(len(piece))
                    pieces.append(piece)
        except TimeoutError:
            raise body_overdue(timeout_s) from None
        return pieces


def _check_is_json(content_type: str) -> None:
    """Raises ApiError (415) for a body that is not declared as JSON. Any web page may send the
    other types to any server, without asking that server first."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == "application/json" or re.fullmatch(r"application/[^/]+\+json", media_type):
        return
    problem = f"is {quote(content_type)}" if content_type else "is missing"
    message = f"Content-Type {problem}; send the body as application/json"
    raise ApiError(415, message, code="unsupported_media_type")


def owner_of(http: Request) -> str:
    """The owner of a body: the name of its API key, or without keys the client's address. The heavy
    bodies of one owner share a queue."""
    return account_of(http.scope).name or (http.client.host if http.client else "")
