"""Errors in the form that OpenAI's clients expect: ``{"error": {message, type, param, code}}``. On
the paths of the Messages API they have the form that Anthropic's clients expect
(messages/error_form.py)."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOMEM
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.core.contract import GenerationFailed, Overloaded
from coordinator.http.messages.error_form import is_messages, messages_error, messages_status
from coordinator.http.while_connected import ClientDisconnected
from telemetry.logs import bound_request

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499  # nginx's status; it is only logged

_MAX_MESSAGE_LEN = 700  # characters; an error stays under 4 KB even if each takes four bytes
_MAX_PARAM_LEN = 100
_WORTH_ASKING_AGAIN = (
    "shutting_down", "worker_lost", "lost_at_worker", "peer_gone", "stale_offer", "pull_timeout",
    "offer_expired", "queue_timeout",
)  # fmt: skip
_FAILED_STATUS = {"too_long": 400, "constraint_failed": 400, "timeout": 504} | dict.fromkeys(
    _WORTH_ASKING_AGAIN, 503
)
_RETRY_AFTER_S = 1.0


class ApiError(Exception):
    """A request that is answered with an error; ``param`` is the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        if retry_after_s is not None:
            self.headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))

    @property
    def message(self) -> str:
        """The message for the client, shortened."""
        return _clip(str(self), _MAX_MESSAGE_LEN)

    def body(self) -> dict[str, dict[str, str | None]]:
        return {
            "error": {
                "message": self.message,
                "type": _type(self.status),
                "param": self.param and _clip(self.param, _MAX_PARAM_LEN),
                "code": self.code,
            }
        }

    def response(self) -> Response:
        return _ErrorResponse(self)


@contextmanager
def fields_renamed(names: Mapping[str, str], *, max_tokens: str = "max_tokens") -> Iterator[None]:
    """Make an ApiError that is raised within name the field that the client sent. ``names`` maps
    fields of a chat to the client's fields; ``max_tokens`` is the client's name of that field in
    the rest of a message."""
    try:
        yield
    except ApiError as error:
        param = error.param or ""
        if (given := names.get(param)) is None:
            raise
        message = str(error).replace("max_tokens", max_tokens)
        if message.startswith(f"{param}: "):
            message = given + message.removeprefix(param)
        raise ApiError(
            error.status, message, param=given, code=error.code, headers=error.headers
        ) from None


class _ErrorResponse(Response):
    """An error in the form that clients of its path expect."""

    def __init__(self, error: ApiError) -> None:
        self._error = error
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error
        response = json_response(error.body(), status=error.status, headers=error.headers)
        if is_messages(scope["path"]):
            body = messages_error(error.status, error.message, error.code, bound_request())
            status = messages_status(error.status, error.code)
            response = json_response(body, status=status, headers=error.headers)
        await response(scope, receive, send)


def _type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def body_overdue(timeout_s: float) -> ApiError:
    """The error of a body that did not arrive in time."""
    message = f"the body did not arrive within {timeout_s:g} s"
    return ApiError(408, message, code="request_timeout")


def invalid(param: str, message: str, code: str = "invalid_value") -> ApiError:
    """A 400 for one field."""
    return ApiError(400, f"{param}: {message}", param=param, code=code)


def _hint(path: str) -> str:
    """A hint for a client whose base URL lacks the version."""
    known = ("/chat/completions", "/completions", "/models", "/responses", "/messages")
    return f"; is /v1{path} meant?" if path.startswith(known) else ""


def quote(text: str) -> str:
    """Input, shortened for an error message."""
    return repr(text if len(text) <= 64 else text[:61] + "…")


def from_core(error: GenerationFailed | Overloaded) -> ApiError:
    """The error for a request that the core refused or failed."""
    if isinstance(error, Overloaded):
        return ApiError(503, str(error), code=error.code, retry_after_s=error.retry_after_s)
    status = _FAILED_STATUS.get(error.code, 500)
    retry_after_s = _RETRY_AFTER_S if status == 503 else None
    return ApiError(status, str(error), code=error.code, retry_after_s=retry_after_s)


def unhandled(error: Exception) -> ApiError:
    """The error for an exception that nothing handled: a 503 if this process gets no memory or no
    thread, else a 500 for a bug. The log has its traceback, under the request's id."""
    no_thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    no_memory = isinstance(error, OSError) and error.errno == ENOMEM
    if no_thread or no_memory or isinstance(error, MemoryError):
        text = "the coordinator gets no memory for this request"
        return ApiError(503, text, code="overloaded", retry_after_s=_RETRY_AFTER_S)
    return internal_error()


def cut_off() -> ApiError:
    """The error for a request whose time ends with the coordinator's."""
    return from_core(GenerationFailed("shutting_down", "the coordinator is shutting down"))


def internal_error() -> ApiError:
    """A 500 for a bug; the log has its traceback, under the request's id."""
    return ApiError(500, "internal error", code="internal_error")


def json_response(
    body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    return Response(
        msgspec.json.encode(body), status, headers=headers, media_type="application/json"
    )


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error that the framework can raise with an ErrorBody; none is a 422."""

    async def answer(http: Request, error: Exception) -> Response:
        match error:
            case ApiError():
                return error.response()
            case GenerationFailed() | Overloaded():
                return from_core(error).response()
            case HTTPException():
                return _from_framework(http, error).response()
            case RequestValidationError():
                first = error.errors()[0]
                return invalid(".".join(map(str, first["loc"][1:])), first["msg"]).response()
            case _:
                log.debug("request abandoned", extra={"reason": str(error) or "connection closed"})
                return Response(status_code=CLIENT_CLOSED_REQUEST)

    for kind in (
        ApiError, GenerationFailed, Overloaded, HTTPException, RequestValidationError,
        ClientDisconnect, ClientDisconnected,
    ):  # fmt: skip
        app.add_exception_handler(kind, answer)


def _from_framework(http: Request, error: HTTPException) -> ApiError:
    """The error for an unknown path or method."""
    status, message = HTTPStatus(error.status_code), str(error.detail)
    if status == HTTPStatus.NOT_FOUND:
        message = f"there is no {http.method} {quote(http.url.path)}{_hint(http.url.path)}"
    code = status.phrase.lower().replace(" ", "_")
    return ApiError(status, message, code=code, headers=error.headers)


def _clip(text: str, limit: int) -> str:
    clipped = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in clipped)
