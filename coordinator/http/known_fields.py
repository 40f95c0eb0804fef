"""Fields of OpenAI's, vLLM's, SGLang's and llama.cpp's requests that this server does not act on.

Each is refused unless its value is harmless, or ignored for the reason in ``IGNORED``. So no field
that would change an answer is dropped silently. docs/api-table.md lists them all.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Raw, UnsetType

from coordinator.http.request_fields import Unsupported, harmless
from coordinator.http.sampling_fields import INT32_MAX, SamplingFields

IGNORED = {
    "guided_decoding_backend": "llguidance compiles every grammar",
    "metadata": "it labels stored answers, and none is stored",
    "prediction": "it only makes an answer come sooner",
    "prompt_cache_key": "a prompt's prefix is found without it",
    "prompt_cache_options": "prefixes are cached without it",
    "prompt_cache_retention": "prefixes are cached without it",
    "return_mm_kwargs": "only vLLM's render endpoints use it",
    "safety_identifier": "it only names the end user",
    "session_id": "it is a hint for routing, and any worker can serve any request",
    "store": "only the answers of /v1/responses are stored",
    "spaces_between_special_tokens": "byte-level tokens are joined without spaces",
    "user": "it only names the end user",
}
"""Why each of these fields is ignored on purpose. Fields that are not known are ignored too."""

WARNED = {"priority": "requests of a key are served in the order of their arrival"}
"""Why each of these fields is ignored with a warning. None changes an answer."""

_Ones = Annotated[Raw, harmless(1, 1.0)] | UnsetType


class KnownFields(SamplingFields, kw_only=True):
    """The fields of this kind that chats and completions share; request_schemas.py has the
    others."""

    early_stopping: Unsupported = UNSET
    ec_transfer_params: Unsupported = UNSET
    grammar_lazy: Unsupported = UNSET
    grammar_triggers: Unsupported = UNSET
    guided_whitespace_pattern: Unsupported = UNSET
    kv_transfer_params: Unsupported = UNSET
    length_penalty: _Ones = UNSET
    logits_processors: Unsupported = UNSET
    logprob_token_ids: Unsupported = UNSET
    moderation: Unsupported = UNSET
    priority: Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    return_token_offsets: Unsupported = UNSET
    routed_experts_prompt_start: Annotated[Raw, harmless(0)] | UnsetType = UNSET
    service_tier: Annotated[Raw, harmless("auto", "default")] | UnsetType = UNSET
    stop_regex: Unsupported = UNSET
    use_beam_search: Unsupported = UNSET
    vllm_xargs: Unsupported = UNSET
    watermarking: Unsupported = UNSET
