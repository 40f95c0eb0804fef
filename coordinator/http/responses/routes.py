"""The endpoints of OpenAI's Responses API that compute: a response, or the length of an input."""

from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.core.contract import StoredResponses
from coordinator.http.answer_form import tool_parameters
from coordinator.http.app_context import AppContext, new_id
from coordinator.http.auth.accounts import account_of
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.choice import collected
from coordinator.http.errors import json_response
from coordinator.http.generation import sequence_requests
from coordinator.http.openapi import answers, request_body
from coordinator.http.respond import cancel_all, finish_answer, respond, submit_choices
from coordinator.http.response_names import noted_name
from coordinator.http.response_schemas import InputTokens
from coordinator.http.responses.answer import ResponseAnswer
from coordinator.http.responses.background import BackgroundResponses
from coordinator.http.responses.earlier import earlier
from coordinator.http.responses.events import EVENTS
from coordinator.http.responses.functions import FunctionNames, ignored_tools
from coordinator.http.responses.item_ids import response_id
from coordinator.http.responses.output import Output
from coordinator.http.responses.request import ResponseRequest
from coordinator.http.responses.schemas import ResponseBody, body_of
from coordinator.http.responses.stored_routes import stored_routes
from coordinator.http.responses.translation import client_field_names
from coordinator.http.responses.turn import Turn
from coordinator.http.warning_header import warn
from coordinator.record.stored_response import StoredResponse

_turn = msgspec.json.Decoder(Turn)


def response_routes(context: AppContext, bodies: Bodies, stored: StoredResponses) -> APIRouter:
    router = APIRouter(tags=["responses"])
    background = BackgroundResponses()

    @router.post(
        "/v1/responses",
        responses=answers(ResponseBody, 400, 404, 503, 504, chunk=EVENTS),
        openapi_extra=request_body(ResponseRequest),
    )
    async def create_response(http: Request) -> Response:
        """The model's response to an input; with ``stream`` as server-sent events."""
        owner = account_of(http.scope).name
        with client_field_names():
            prepared = await bodies.generation(http, "response", partial(earlier, stored, owner))
            turn, request_id = _turn.decode(prepared.origin), new_id()
            for warning in ignored_tools(turn.request.tools):
                warn(http.scope, warning)
            specs = await sequence_requests(context, http, prepared, request_id)
            thought = context.tokenizer.thought_of(prepared.prompts[0])
            tools = tool_parameters(prepared.request)
            body = body_of(
                turn.request,
                specs[0].sampling,
                response_id(request_id),
                context.settings.served_model_name,
            )
            # The response keeps its own id: it is stored under that.
            context.names.named(request_id, noted_name(http.scope))
            answer = ResponseAnswer(
                body,
                Output(
                    body.id,
                    context.tokenizer.dialect.answer_parser(thought, tools),
                    FunctionNames(turn.request.tools),
                    summarizes=turn.request.summarizes,
                ),
                prepared.prompt_tokens,
                thought,
                partial(_store, stored, owner, turn),
            )
            if not body.background:
                return await respond(context, http, prepared.request, specs, answer)
            choices = submit_choices(context, http, prepared.request, specs)
            background.start(
                owner,
                body,
                bytes(turn.items),
                lambda: finish_answer(context, choices, [request_id], collected(choices), answer),
                partial(cancel_all, choices),
                partial(_store, stored, owner, turn),
            )
            return json_response(body)

    @router.post(
        "/v1/responses/input_tokens",
        responses=answers(InputTokens, 400, 404, 503),
        openapi_extra=request_body(ResponseRequest),
    )
    async def count_input_tokens(http: Request) -> Response:
        """The number of tokens of the prompt that an input makes, with all that it continues."""
        owner = account_of(http.scope).name
        with client_field_names():
            found = await bodies.lookup(http, "input_tokens", partial(earlier, stored, owner))
        return Response(found, media_type="application/json")

    router.include_router(stored_routes(stored, background))
    return router


async def _store(stored: StoredResponses, owner: str, turn: Turn, body: ResponseBody) -> bool:
    """Store a response that has ended, with all that it adds to its conversation."""
    output = [msgspec.Raw(msgspec.json.encode(item)) for item in body.output]
    items = [*msgspec.json.decode(turn.items, type=list[msgspec.Raw]), *output]
    response = StoredResponse(
        body.id,
        body.previous_response_id or "",
        msgspec.json.encode(items),
        msgspec.json.encode(body),
    )
    return await stored.keep(owner, response)
