"""The two endpoints that generate: from a prepared request to its response."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from coordinator.core.contract import GenerationFailed, SequenceRequest, TokenStream
from coordinator.http.answer import Answer, ChunkedAnswer
from coordinator.http.answer_form import callable_tools, parameters_of
from coordinator.http.app_context import AppContext, new_id
from coordinator.http.auth.accounts import account_of
from coordinator.http.body import Bodies
from coordinator.http.chat_writer import ChatWriter
from coordinator.http.choice import Choice, NoOutput, collected
from coordinator.http.constraint import constraint_for
from coordinator.http.errors import invalid, json_response
from coordinator.http.logprobs import scorer
from coordinator.http.middleware import note_accepted
from coordinator.http.openapi import answers, request_body
from coordinator.http.preparation import Prepared
from coordinator.http.prompt_logprobs import check_prompt_logprobs, prompt_reader
from coordinator.http.prompts import room_for_output
from coordinator.http.request_schemas import ChatRequest, CompletionRequest, GenerationRequest
from coordinator.http.response_names import noted_name
from coordinator.http.response_schemas import ChatCompletion, ChatCompletionChunk, Completion
from coordinator.http.sampling import sampling_params, seeds, stop_rule
from coordinator.http.sse import EventStream
from coordinator.http.while_connected import while_connected
from coordinator.http.writers import CompletionWriter, Head
from coordinator.text.detokenizer import Detokenizer
from coordinator.text.repetition import detector
from coordinator.text.stops import StopStrings
from telemetry.logs import bound_request
from transport.wire.sampling import Constraint


def generate_routes(context: AppContext, bodies: Bodies) -> APIRouter:
    router = APIRouter(tags=["generation"])

    def head(http: Request, prepared: Prepared, prefix: str, request_id: str) -> Head:
        request, model = prepared.request, context.settings.served_model_name
        name = context.names.named(request_id, noted_name(http.scope) or request.request_id)
        return Head(
            f"{prefix}-{name}",
            model,
            logprobs=request.num_logprobs is not None,
            prompt_ids=prepared.prompts if request.return_token_ids else None,
        )

    @router.post(
        "/v1/chat/completions",
        responses=answers(ChatCompletion, 400, 404, 503, 504, chunk=ChatCompletionChunk),
        openapi_extra=request_body(ChatRequest),
    )
    async def chat_completions(http: Request) -> Response:
        """The assistant's next message; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "chat")
        request_id = new_id()
        request, tokenizer = prepared.request, context.tokenizer
        assert isinstance(request, ChatRequest)
        constraint = await constraint_for(http, prepared, tokenizer)
        specs = sequence_requests(context, prepared, request_id, constraint)
        writer = ChatWriter(
            head(http, prepared, "chatcmpl", request_id),
            thinks=tokenizer.opens_thought(prepared.prompts[0]),
            tells_thought=request.include_reasoning is not False,
            tools=parameters_of(callable_tools(request)),
        )
        answer = ChunkedAnswer(writer, prepared.request, prepared.prompt_tokens)
        return await respond(context, http, prepared.request, specs, answer, role_first=True)

    @router.post(
        "/v1/completions",
        responses=answers(Completion, 400, 404, 503, 504, chunk=Completion),
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(http: Request) -> Response:
        """Text that continues each prompt; with ``stream`` as server-sent events."""
        prepared = await bodies.generation(http, "completion")
        request_id = new_id()
        constraint = await constraint_for(http, prepared, context.tokenizer)
        specs = sequence_requests(context, prepared, request_id, constraint)
        n, echoes = prepared.request.n or 1, prepared.echoes
        writer = CompletionWriter(head(http, prepared, "cmpl", request_id), n=n, echoes=echoes)
        answer = ChunkedAnswer(writer, prepared.request, prepared.prompt_tokens)
        return await respond(context, http, prepared.request, specs, answer, role_first=False)

    return router


log = logging.getLogger(__name__)


def sequence_requests(
    context: AppContext, prepared: Prepared, response_id: str, constraint: Constraint | None
) -> list[SequenceRequest]:
    """One for each choice, in the order of their indices: n of the first prompt, and so on."""
    request, prompts = prepared.request, prepared.prompts
    n = request.n or 1
    asked, asked_param = request.max_tokens, "max_tokens"
    if request.max_completion_tokens is not None:
        asked, asked_param = request.max_completion_tokens, "max_completion_tokens"
    sampling = sampling_params(request, context.tokenizer, logprobs=request.num_logprobs)
    specs: list[SequenceRequest] = []
    chat = prepared.kind == "chat"
    for prompt in prompts:
        max_tokens = room_for_output(
            len(prompt), asked, context.max_model_len,
            prompt_param=request.prompt_param, asked_param=asked_param,
            default=request.default_max_tokens,
        )  # fmt: skip
        boundaries = context.tokenizer.boundaries.of(prompt) if chat else ()
        stop = stop_rule(request, context.tokenizer, max_tokens=max_tokens)
        for seed in seeds(request.seed, n):
            suffix = f"-{len(specs)}" if n * len(prompts) > 1 else ""
            seeded = msgspec.structs.replace(
                sampling,
                seed=seed,
                constraint=constraint if max_tokens else None,
                # The answer of a chat has its prompt's once, that of a completion in every choice.
                prompt_logprobs=None if specs and chat else sampling.prompt_logprobs,
            )
            request_id = response_id + suffix
            specs.append(
                SequenceRequest(
                    request_id, prompt, seeded, stop, bound_request(),
                    streamed=bool(request.stream), boundaries=boundaries,
                )
            )  # fmt: skip
    check_prompt_logprobs(request, specs, context.settings.max_prompt_logprobs)
    num_tokens = sum(spec.num_held for spec in specs)
    if num_tokens > (most := context.core.max_open_tokens):
        message = f"{num_tokens} tokens in all choices; this server holds at most {most} at a time"
        raise invalid(request.prompt_param, message, "context_length_exceeded")
    return specs


async def respond(
    context: AppContext,
    http: Request,
    request: GenerationRequest,
    specs: Sequence[SequenceRequest],
    answer: Answer,
    *,
    role_first: bool,
) -> Response:
    """Submit, then stream or collect. Raises Overloaded when one of ``specs`` is not accepted,
    ApiError when the key has no tokens left, GenerationFailed and ClientLeft; in every case nothing
    goes on that the client does not wait for."""
    n = request.n or 1
    prompt_tokens = sum(len(spec.prompt_ids) for spec in specs[::n])
    account = account_of(http.scope)
    account.check_tokens()
    salt = context.of_key(account.name).salt(request.cache_salt)
    streams = _submit(context, [replace(spec, key=account.name, salt=salt) for spec in specs])
    note_accepted(http.scope)
    account.charge(prompt_tokens)
    answers = request.num_output_asked != 0
    metered = [account.metered(stream) if answers else stream for stream in streams]
    choices = _choices(context, request, specs, metered, role_first=role_first)
    request_ids = [spec.request_id for spec in specs]
    recorded = partial(context.core.recorded, request_ids)
    if request.stream:
        return EventStream(choices, answer, recorded, partial(context.core.cut, request_ids))
    try:
        outputs = await while_connected(collected(choices), http.receive)
    except GenerationFailed:
        _cancel(streams)
        await recorded()
        raise
    finally:
        _cancel(streams)
    body = await answer.body(outputs)
    await recorded()
    return json_response(body)


def _choices(
    context: AppContext,
    request: GenerationRequest,
    specs: Sequence[SequenceRequest],
    streams: Sequence[TokenStream],
    *,
    role_first: bool,
) -> list[Choice]:
    tokenizer, stops = context.tokenizer, StopStrings(request.stop_strings)
    skipped = frozenset() if request.skip_special_tokens is False else tokenizer.special_ids
    kind = NoOutput if request.num_output_asked == 0 else Choice
    return [
        kind(
            stream,
            Detokenizer(tokenizer.token_bytes, skipped),
            stops.matcher(),
            stop_ids=frozenset(spec.stop.stop_token_ids),
            eos_ids=() if request.ignore_eos else tokenizer.info.eos_ids,
            min_tokens=spec.stop.min_tokens,
            include_stop=bool(request.include_stop_str_in_output),
            role_first=role_first and bool(request.stream),
            every_token=bool(request.return_token_ids),
            interval=request.stream_interval or 1,
            repetition=detector(request.repetition_detection),
            prompt=prompt_reader(request, spec, tokenizer.token_bytes),
            score=scorer(request, tokenizer.token_bytes),
        )
        for stream, spec in zip(streams, specs, strict=True)
    ]


def _submit(context: AppContext, specs: Sequence[SequenceRequest]) -> list[TokenStream]:
    streams: list[TokenStream] = []
    try:
        for spec in specs:
            streams.append(context.core.submit(spec))  # noqa: PERF401, kept for the except
    except BaseException:
        _cancel(streams)
        raise
    fields = {
        "request_id": specs[0].request_id,
        "choices": len(specs),
        "prompt_len": len(specs[0].prompt_ids),
    }
    log.debug("accepted", extra=fields)
    return streams


def _cancel(streams: Sequence[TokenStream]) -> None:
    for stream in streams:
        stream.cancel()
