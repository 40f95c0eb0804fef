"""Errors in the form that Anthropic's clients expect, on the paths of the Messages API."""

from collections.abc import Mapping
from http import HTTPStatus

from coordinator.http.messages.bodies import (
    ErrorDetails,
    ErrorType,
    MessagesError,
    MessagesErrorBody,
)

PATH = "/v1/messages"
OVERLOADED = 529
"""Anthropic's own status, for which its clients wait or take another model."""

_TYPES: Mapping[int, ErrorType] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
    OVERLOADED: "overloaded_error",
}


def is_messages(path: str) -> bool:
    return path == PATH or path.startswith(PATH + "/")


def messages_status(status: int, code: str | None) -> int:
    return OVERLOADED if code == "overloaded" else status


def messages_error(
    status: int, message: str, code: str | None, request_id: str
) -> MessagesErrorBody:
    """The error body; ``status`` and ``code`` are those of the other paths."""
    status = messages_status(status, code)
    if code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # agents look for these words to compact
    general: ErrorType = "invalid_request_error" if status < 500 else "api_error"
    error = MessagesError(type=_TYPES.get(status, general), message=message)
    if code is not None:
        error.details = ErrorDetails(error_code=code)
    return MessagesErrorBody(error=error, request_id=request_id or None)
