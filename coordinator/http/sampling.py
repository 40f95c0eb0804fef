"""A request's sampling fields, with the checkpoint's defaults, as the structs of the wire."""

import hashlib
import secrets

from coordinator.http.errors import invalid
from coordinator.http.http_settings import HttpSettings
from coordinator.http.prompts import check_token_ids
from coordinator.http.request_schemas import GenerationRequest
from coordinator.text.tokenizer import Tokenizer
from transport.wire.sampling import SamplingParams, StopRule

_SEED_MASK = 2**63 - 1
_GREEDY_BELOW = 1e-5  # a lower temperature would only overflow the logits


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


def check_caps(request: GenerationRequest, settings: HttpSettings) -> None:
    """Raises ApiError if a request asks for more than the settings allow."""
    stops = request.stop_strings
    for param, num, cap in (
        ("n", request.n or 1, settings.max_n),
        ("stop", len(stops), settings.max_stops),
        ("stop_token_ids", len(request.stop_token_ids or ()), settings.max_stop_token_ids),
        ("logit_bias", len(request.logit_bias or ()), settings.max_logit_bias),
    ):
        if num > cap:
            raise invalid(param, f"at most {cap} allowed here, got {num}")
    if any(len(stop) > settings.max_stop_len for stop in stops):
        raise invalid("stop", f"at most {settings.max_stop_len} characters a string")


def _derived(seed: int, choice: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") & _SEED_MASK
