"""A request's body: read with a deadline, parsed strictly."""

import asyncio
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.requests import Request

from coordinator.errors import ApiError, from_validation

_Model = TypeVar("_Model", bound=BaseModel)


async def read(model: type[_Model], request: Request, timeout_s: float) -> _Model:
    """The validated body, whatever its content type; raises ApiError.

    NOTE: pydantic's own JSON parser refuses invalid UTF-8, lone surrogates and deep nesting.
    """
    try:
        async with asyncio.timeout(timeout_s):
            body = await request.body()
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} s"
        raise ApiError(408, message, code="request_timeout") from None
    if b"NaN" in body or b"Infinity" in body:
        _refuse_constants(body)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise from_validation(error) from None


def _refuse_constants(body: bytes) -> None:
    """NaN and Infinity are no JSON, also where no field would notice; in strings they are fine."""
    try:
        from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"Invalid JSON: {error}", code="invalid_json") from None
