"""The SequenceRequests of a prepared request, one per choice: sampling, seeds, and when each ends.

Sampling fields that a request leaves out have the checkpoint's defaults.
"""

import hashlib
import secrets

from fastapi import Request
from msgspec import structs

from coordinator.core.contract import SequenceRequest
from coordinator.http.app_context import AppContext
from coordinator.http.auth.accounts import account_of
from coordinator.http.constraint import constraint_for
from coordinator.http.errors import invalid
from coordinator.http.known_fields import WARNED
from coordinator.http.preparation import Prepared
from coordinator.http.prompt_logprobs import check_prompt_logprobs
from coordinator.http.prompts import check_token_ids, room_for_output
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.warning_header import warn
from coordinator.text.tokenizer import Tokenizer
from telemetry.logs import bound_request
from transport.wire.sampling import SamplingParams, StopRule

_SEED_MASK = 2**63 - 1
_GREEDY_BELOW = 1e-5  # a lower temperature would only overflow the logits


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
