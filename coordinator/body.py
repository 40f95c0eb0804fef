"""A request's body: read with a deadline, weighed, parsed strictly."""

import asyncio
from typing import TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from coordinator.body_weight import check_weight
from coordinator.edge import Edge
from coordinator.errors import ApiError, from_validation

_Model = TypeVar("_Model", bound=BaseModel)


async def read(edge: Edge, model: type[_Model], request: Request) -> _Model:
    """The validated body, whatever its content type; raises ApiError.

    NOTE: pydantic's own JSON parser refuses invalid UTF-8, lone surrogates and deep nesting.
    """
    timeout_s = edge.settings.body_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            # Request.body() would keep them for as long as the response takes.
            body = b"".join([piece async for piece in request.stream()])
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} s"
        raise ApiError(408, message, code="request_timeout") from None
    if b"NaN" in body or b"Infinity" in body:
        _refuse_constants(body)
    check_weight(body, max_prompts=edge.settings.max_choices, max_len=edge.max_model_len)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from None


def _refuse_constants(body: bytes) -> None:
    """NaN and Infinity are no JSON, also where no field would notice; in strings they are fine."""
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(400, f"Invalid JSON: {error}", code="invalid_json") from None
