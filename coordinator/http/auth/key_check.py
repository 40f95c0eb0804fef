"""The middleware that asks every request for its API key, if keys are set."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coordinator.http.auth.accounts import QUOTA_USED_UP, Accounts, KeyAccount, open_account
from coordinator.http.errors import ApiError
from coordinator.http.routes_page import PATHS as PAGE

OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/metrics"}) | PAGE
"""Paths without a key: probes and scrapers have none, and these tell nothing about what clients
ask. The page asks its user for a key."""


class KeyCheck:
    """Answers 401 to a request without a known key. Answers 429 to a POST whose key has used up its
    quota, before anything of its body is read. Each POST is counted once, as refused or not: the
    last token may be gone before it is submitted. Answers tell what is left of the key's quotas."""

    def __init__(self, app: ASGIApp, accounts: Accounts) -> None:
        self._app = app
        self._accounts = accounts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        try:
            account = self._account(scope)
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        open_account(scope, account)

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *account.headers()]
            await send(message)

        if scope["method"] != "POST":
            await self._app(scope, receive, send_with_limits)
            return
        counted = False

        async def send_counted(message: Message) -> None:
            nonlocal counted
            if message["type"] == "http.response.start":
                counted = True
                account.count(refused=message["status"] == QUOTA_USED_UP)
            await send_with_limits(message)

        try:
            account.admit()
            await self._app(scope, receive, send_counted)
        except ApiError as error:
            await error.response()(scope, receive, send_counted)
        finally:
            if not counted:
                account.count(refused=False)  # its client has disconnected

    def _account(self, scope: Scope) -> KeyAccount:
        account = self._accounts.of(_presented(scope))
        if account is None:
            raise _unauthorized("the API key is not one of this server's")
        return account


def _presented(scope: Scope) -> bytes:
    """The key of a request. Raises ApiError for none, and for a header that holds none."""
    given, keys = _values(scope, b"authorization"), _values(scope, b"x-api-key")
    if not given and len(keys) == 1 and (key := keys[0].strip()):
        return key
    if not given:
        raise _unauthorized(
            "no API key was given; send: Authorization: Bearer <key>, or x-api-key: <key>"
        )
    scheme, _, presented = given[0].strip().partition(b" ")
    if len(given) > 1 or scheme.lower() != b"bearer" or not presented.strip():
        raise _unauthorized("the Authorization header must be: Bearer <key>")
    return presented.strip()


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]


def _unauthorized(message: str) -> ApiError:
    headers = {"www-authenticate": "Bearer"}
    return ApiError(401, message, code="invalid_api_key", headers=headers)
