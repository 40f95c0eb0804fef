"""Generation: the endpoints for chats and completions, and the SequenceRequests of every API.

A request becomes one SequenceRequest per choice, with its sampling parameters, seed and stop rule.
The endpoints of other APIs (responses/routes.py, messages/routes.py) make theirs here too.
"""

import hashlib
import secrets
from collections.abc import Sequence
from functools import partial

from fastapi import APIRouter, Request
from msgspec import structs
from starlette.responses import Response

from coordinator.core.contract import SequenceRequest
from coordinator.http.answer import ChunkedAnswer, CompletionWriter, Head
from coordinator.http.answer_form import tool_parameters
from coordinator.http.app_context import AppContext, new_id
from coordinator.http.auth.accounts import account_of
from coordinator.http.bodies.bodies import Bodies
from coordinator.http.chat_writer import ChatWriter
from coordinator.http.constraint import constraint_for
from coordinator.http.errors import invalid
from coordinator.http.known_fields import WARNED
from coordinator.http.openapi import answers, request_body
from coordinator.http.preparation import Prepared
from coordinator.http.prompt_logprobs import check_prompt_logprobs
from coordinator.http.prompts import check_token_ids, room_for_output
from coordinator.http.request_schemas import ChatRequest, CompletionRequest, GenerationRequest
from coordinator.http.respond import respond
from coordinator.http.response_names import noted_name
from coordinator.http.response_schemas import ChatCompletion, ChatCompletionChunk, Completion
from coordinator.http.target_headers import asked_times
from coordinator.http.warning_header import warn
from coordinator.text.thoughts import Opener
from coordinator.text.tokenizer import Tokenizer
from telemetry.logs import bound_request
from transport.wire.sampling import SamplingParams, StopRule

_SEED_MASK = 2**63 - 1
_GREEDY_BELOW = 1e-5  # a lower temperature would only overflow the logits


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
            fingerprint=context.fingerprint,
        )

    @router.post(
        "/v1/chat/completions",
        responses=answers(ChatCompletion, 400, 404, 503, 504, chunk=ChatCompletionChunk),
        openapi_extra=request_body(ChatRequest),
    )
    async def chat_completions(http: Request) -> Response:
        """The assistant's next message; with ``stream`` as server-sent events."""
        return await chat(http, await bodies.generation(http, "chat"))

    async def chat(http: Request, prepared: Prepared) -> Response:
        request, request_id = prepared.request, new_id()
        assert isinstance(request, ChatRequest)
        specs = await sequence_requests(context, http, prepared, request_id)
        tokenizer = context.tokenizer
        thought = tokenizer.thought_of(prepared.prompts[0])
        parser = partial(tokenizer.dialect.answer_parser, thought, tool_parameters(request))
        named = head(http, prepared, "chatcmpl", request_id)
        writer = ChatWriter(named, request, parser, thinks=thought is not None)
        answer = ChunkedAnswer(writer, request, prepared.prompt_tokens, thought)
        return await respond(context, http, request, specs, answer)

    @router.post(
        "/v1/completions",
        responses=answers(Completion, 400, 404, 503, 504, chunk=Completion),
        openapi_extra=request_body(CompletionRequest),
    )
    async def completions(http: Request) -> Response:
        """Text that continues each prompt; with ``stream`` as server-sent events."""
        return await completion(http, await bodies.generation(http, "completion"))

    @router.post("/invocations", include_in_schema=False)
    async def invocations(http: Request) -> Response:
        """A chat or a completion, by its body, on the path that SageMaker uses."""
        prepared = await bodies.generation(http, "invocation")
        answer = chat if prepared.kind == "chat" else completion
        return await answer(http, prepared)

    async def completion(http: Request, prepared: Prepared) -> Response:
        request, request_id = prepared.request, new_id()
        specs = await sequence_requests(context, http, prepared, request_id)
        n, echoes = request.n or 1, prepared.echoes
        writer = CompletionWriter(head(http, prepared, "cmpl", request_id), n=n, echoes=echoes)
        answer = ChunkedAnswer(writer, request, prepared.prompt_tokens)
        return await respond(context, http, request, specs, answer)

    return router


async def sequence_requests(
    context: AppContext, http: Request, prepared: Prepared, response_id: str
) -> list[SequenceRequest]:
    """One SequenceRequest per choice, in the order of their indices: n of the first prompt, and so
    on. Raises ApiError and ClientDisconnected."""
    request, prompts, tokenizer = prepared.request, prepared.prompts, context.tokenizer
    sampling = sampling_params(request, tokenizer)
    _warn_of_ignored(http, request, tokenizer)
    constraint = await constraint_for(http, prepared, tokenizer)
    account, chat, n = account_of(http.scope), isinstance(request, ChatRequest), request.n or 1
    salt = context.of_key(account.name).salt(request.cache_salt)
    ttft_s, tpot_s = asked_times(http, pools_follow=context.core.pools_follow)
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
                streamed=bool(request.stream), key=account.name, weight=account.weight,
                priority=account.priority, salt=salt, boundaries=boundaries, ttft_s=ttft_s,
                tpot_s=tpot_s,
            )  # fmt: skip
            specs.append(spec)
    check_prompt_logprobs(request, specs, context.settings.max_prompt_logprobs)
    _check_num_tokens(request, specs, context.core.max_open_tokens)
    return specs


def _warn_of_ignored(http: Request, request: GenerationRequest, tokenizer: Tokenizer) -> None:
    """Add warnings about fields that have no effect to the answer's headers."""
    for name, reason in WARNED.items():
        if getattr(request, name):
            warn(http.scope, f"{name} is ignored: {reason}")
    thinks = isinstance(request, ChatRequest) and request.reasoning_effort not in (None, "none")
    if thinks and tokenizer.dialect.opener is Opener.NOBODY:
        warn(http.scope, "the answer has no thought: this model's chat template has none")


def _check_num_tokens(
    request: GenerationRequest, specs: Sequence[SequenceRequest], most: int
) -> None:
    """Raises ApiError if the choices together have more tokens than may be open."""
    num_tokens = sum(spec.num_held for spec in specs)
    if num_tokens > most:
        message = f"{num_tokens} tokens in all choices; this server holds at most {most} at a time"
        raise invalid(request.prompt_param, message, "context_length_exceeded")


def sampling_params(request: GenerationRequest, tokenizer: Tokenizer) -> SamplingParams:
    """All sampling parameters but the seed (``seeds`` below). Raises ApiError for ids that the
    model lacks."""
    defaults = tokenizer.info.sampling_defaults

    def chosen(value: float | None, name: str, fallback: float) -> float:
        return value if value is not None else defaults.get(name, fallback)

    temperature = chosen(request.temperature, "temperature", 1.0)
    top_p = chosen(request.top_p, "top_p", 1.0)
    if top_p == 0:  # OpenAI's range includes 0: only the most probable token is left
        temperature, top_p = 0.0, 1.0
    logit_bias = request.token_biases()
    check_token_ids("logit_bias", logit_bias, tokenizer)
    check_token_ids("allowed_token_ids", request.allowed_token_ids or (), tokenizer)
    return SamplingParams(
        temperature=float(temperature) if temperature >= _GREEDY_BELOW else 0.0,
        top_p=float(top_p),
        top_k=max(0, int(chosen(request.top_k, "top_k", 0))),
        min_p=float(chosen(request.min_p, "min_p", 0.0)),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=float(chosen(request.repetition_penalty, "repetition_penalty", 1.0)),
        logit_bias=logit_bias,
        logprobs=request.num_logprobs,
        prompt_logprobs=request.num_prompt_logprobs,
    )


def stop_rule(request: GenerationRequest, tokenizer: Tokenizer, *, max_tokens: int) -> StopRule:
    """When the output ends. ``max_tokens``: the number requested, or the room that the prompt
    leaves. For 0 one token is computed all the same (choice.NoOutput): a request ends with a
    token."""
    min_tokens = request.min_tokens or 0
    if min_tokens > max_tokens:
        raise invalid("min_tokens", f"must be at most max_tokens, which is {max_tokens}")
    asked = request.stop_token_ids or []
    check_token_ids("stop_token_ids", asked, tokenizer)
    eos = () if request.ignore_eos else tokenizer.info.eos_ids
    return StopRule(
        max_tokens=max(1, max_tokens),
        min_tokens=min_tokens,
        stop_token_ids=tuple(dict.fromkeys((*eos, *asked))),
    )


def seeds(seed: int | None, n: int) -> list[int]:
    """One seed of 63 bits per choice: random, or distinct ones derived from ``seed``."""
    if seed is None:
        return [secrets.randbits(63) for _ in range(n)]
    return [seed & _SEED_MASK, *(_derived(seed, choice) for choice in range(1, n))][:n]


def _derived(seed: int, choice: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _SEED_MASK
