"""POST /v1/pools: how many workers compute prompts, and how many decode."""

import asyncio

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.core.contract import PoolChange, PoolsSuperseded
from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import account_of
from coordinator.http.errors import ApiError, body_overdue, invalid, json_response
from coordinator.http.openapi import answers, request_body
from coordinator.http.request_schemas import PoolsRequest

_MAX_BODY_BYTES = 4_096
_DECODER = msgspec.json.Decoder(PoolsRequest)


def pools_routes(context: AppContext) -> APIRouter:
    router = APIRouter(tags=["service"])

    @router.post(
        "/v1/pools",
        responses=answers(PoolChange, 400, 403, 409),
        openapi_extra=request_body(PoolsRequest),
    )
    async def pools(http: Request) -> Response:
        """Assign roles so that the pools have these sizes, and answer when it is done: when no
        prefill worker decodes any more, or after 30 s. The pools stay so until others are asked
        for."""
        _require_right(context, account_of(http.scope).name)
        asked = await _asked(http, context.settings.body_timeout_s)
        try:
            return json_response(await context.core.set_pools(asked.prefill, asked.decode))
        except ValueError as error:
            raise invalid("pools", str(error)) from error
        except PoolsSuperseded as error:
            raise ApiError(409, str(error), code="superseded") from error

    return router


def _require_right(context: AppContext, key_name: str) -> None:
    """Raises ApiError unless the key may change pools. Without keys everyone who may ask at all
    may."""
    settings = context.settings
    if settings.api_keys and key_name not in settings.operator_keys:
        message = (
            "this key has no right to change the pools; BATON_OPERATOR_KEYS names those that do"
        )
        raise ApiError(403, message, code="not_permitted")


async def _asked(http: Request, timeout_s: float) -> PoolsRequest:
    body = b""
    try:
        async with asyncio.timeout(timeout_s):
            async for piece in http.stream():
                body += piece
                if len(body) > _MAX_BODY_BYTES:
                    raise invalid("body", f"more than {_MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise body_overdue(timeout_s) from None
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:  # ValidationError too
        raise invalid("body", str(error)) from error
