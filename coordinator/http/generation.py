"""From a prepared request of any API to its response: one SequenceRequest per choice, submitted
together, then streamed or collected."""

import logging
from collections.abc import Sequence
from functools import partial

from fastapi import Request
from msgspec import structs
from starlette.responses import Response

from coordinator.core.contract import GenerationFailed, SequenceRequest, TokenStream
from coordinator.http.answer import Answer
from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import account_of
from coordinator.http.choice import choices_of, collected
from coordinator.http.constraint import constraint_for
from coordinator.http.errors import invalid, json_response
from coordinator.http.known_fields import WARNED
from coordinator.http.middleware import note_accepted
from coordinator.http.preparation import Prepared
from coordinator.http.prompt_logprobs import check_prompt_logprobs
from coordinator.http.prompts import room_for_output
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.sampling import sampling_params, seeds, stop_rule
from coordinator.http.sse import EventStream
from coordinator.http.warning_header import warn
from coordinator.http.while_connected import while_connected
from telemetry.logs import bound_request

log = logging.getLogger(__name__)


async def sequence_requests(
    context: AppContext, http: Request, prepared: Prepared, response_id: str
) -> list[SequenceRequest]:
    """One SequenceRequest per choice, in the order of their indices: n of the first prompt, and so
    on. Raises ApiError and ClientDisconnected."""
    request, prompts, tokenizer = prepared.request, prepared.prompts, context.tokenizer
    sampling = sampling_params(request, tokenizer)
    for name, reason in WARNED.items():
        if getattr(request, name):
            warn(http.scope, f"{name} is ignored: {reason}")
    constraint = await constraint_for(http, prepared, tokenizer)
    key, chat, n = account_of(http.scope).name, isinstance(request, ChatRequest), request.n or 1
    salt = context.of_key(key).salt(request.cache_salt)
    specs: list[SequenceRequest] = []
    for prompt in prompts:
        max_tokens = room_for_output(request, len(prompt), context.max_model_len)
        boundaries = tokenizer.boundaries.of(prompt) if chat else ()
        stop = stop_rule(request, tokenizer, max_tokens=max_tokens)
        for seed in seeds(request.seed, n):
            suffix = f"-{len(specs)}" if n * len(prompts) > 1 else ""
            seeded = structs.replace(
                sampling,
                seed=seed,
                constraint=constraint if max_tokens else None,
                # A chat returns them once, a completion in every choice.
                prompt_logprobs=None if specs and chat else sampling.prompt_logprobs,
            )
            spec = SequenceRequest(
                response_id + suffix, prompt, seeded, stop, bound_request(),
                streamed=bool(request.stream), key=key, salt=salt, boundaries=boundaries,
            )  # fmt: skip
            specs.append(spec)
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
) -> Response:
    """Submit ``specs``, then stream or collect the answer. Raises Overloaded if one of ``specs`` is
    not accepted, ApiError if the key has no tokens left, GenerationFailed and ClientDisconnected.
    In each case all choices are cancelled."""
    account = account_of(http.scope)
    account.check_tokens()
    streams = _submit(context, specs)
    note_accepted(http.scope)
    context.metrics.per_request.n.observe(request.n or 1)
    account.charge(sum(len(spec.prompt_ids) for spec in specs[:: request.n or 1]))
    if request.num_output_asked != 0:
        streams = [account.metered(stream) for stream in streams]
    choices = choices_of(request, specs, streams, context.tokenizer)
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
