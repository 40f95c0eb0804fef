"""The bodies of requests: what msgspec decodes, and what /openapi.json says of them.

Types, ranges, and what one field says of another are checked here; what depends on the model or
the settings, in sampling.py and prompts.py. Unknown fields are ignored, null means absent. A field
that other servers have and this one does not is ``Unsupported``: refused, never ignored.
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from coordinator.http.request_fields import (
    UNSUPPORTED,
    FieldError,
    RequestBody,
    Unsupported,
    harmless,
)

_INT32_MAX = 2**31 - 1

MAX_MESSAGES = 16_384
"""Messages and text parts of a conversation: each takes a template's time."""
ROLES = ("system", "developer", "user", "assistant")
_LATER_ROLES = ("tool", "function")

Count = Annotated[int, Meta(ge=1, le=_INT32_MAX)]


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class ChatMessage(RequestBody, kw_only=True):
    """One turn. ``developer`` is OpenAI's newer name of ``system``."""

    role: Annotated[str, Meta(extra_json_schema={"enum": list(ROLES)})]
    content: str | list[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Unsupported = UNSET
    function_call: Unsupported = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.role in _LATER_ROLES:
            message = "results of tools are not supported by this server yet"
            raise FieldError("role", message, UNSUPPORTED)
        if self.role not in ROLES:
            raise FieldError("role", f"must be one of {', '.join(ROLES)}")
        if self.content is None and self.role != "assistant":
            raise FieldError("", "content is missing")

    def rendered(self) -> dict[str, str]:
        """As the chat template sees it."""
        content = self.content or ""
        if not isinstance(content, str):
            content = "".join(part.text for part in content)
        message = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content,
        }
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        return message


Messages = Annotated[list[ChatMessage], Meta(min_length=1)]


class StreamOptions(Struct, kw_only=True, omit_defaults=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


_Bias = Annotated[float, Meta(ge=-100, le=100)]
_BIAS_SCHEMA = {"type": "number", "minimum": -100, "maximum": 100}
_bias = msgspec.json.Decoder(_Bias)


class GenerationRequest(RequestBody, kw_only=True):
    """What chat and completions have in common. ``prompt_param`` is the field with the prompt,
    ``num_logprobs`` how many of the most probable tokens come with each token; None: no
    log-probabilities."""

    prompt_param: ClassVar[str]

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    best_of: Count | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_INT32_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[Raw, Meta(extra_json_schema=_BIAS_SCHEMA)]] | None = None
    stop: str | list[Annotated[str, Meta(min_length=1)]] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None

    response_format: Annotated[Raw, harmless({"type": "text"})] | UnsetType = UNSET
    structured_outputs: Unsupported = UNSET
    guided_json: Unsupported = UNSET
    guided_regex: Unsupported = UNSET
    guided_choice: Unsupported = UNSET
    guided_grammar: Unsupported = UNSET
    prompt_logprobs: Unsupported = UNSET
    use_beam_search: Unsupported = UNSET
    truncate_prompt_tokens: Unsupported = UNSET
    return_tokens_as_token_ids: Unsupported = UNSET
    logits_processors: Unsupported = UNSET
    bad_words: Unsupported = UNSET
    allowed_token_ids: Unsupported = UNSET
    vllm_xargs: Unsupported = UNSET
    kv_transfer_params: Unsupported = UNSET
    priority: Annotated[Raw, harmless(0)] | UnsetType = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "only allowed when stream is true")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise FieldError("best_of", "only supported when equal to n", UNSUPPORTED)
        if self.stop == "":
            raise FieldError("stop[0]", "must not be empty")
        self.token_biases()

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError

    @property
    def stop_strings(self) -> Sequence[str]:
        return (self.stop,) if isinstance(self.stop, str) else self.stop or ()

    def token_biases(self) -> dict[int, float]:
        """``logit_bias`` by token id; raises FieldError that names the entry."""
        biases = {}
        for key, value in (self.logit_bias or {}).items():
            try:
                biases[int(key)] = _bias.decode(value)
            except msgspec.ValidationError as error:
                raise FieldError(f"logit_bias.{key}", str(error)) from None
            except ValueError:
                raise FieldError(f"logit_bias.{key}", "is no token id") from None
        return biases


class ChatRequest(GenerationRequest, kw_only=True):
    """``POST /v1/chat/completions``"""

    prompt_param = "messages"

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: Unsupported = UNSET
    tool_choice: Annotated[Raw, harmless("none", "auto")] | UnsetType = UNSET
    functions: Unsupported = UNSET
    function_call: Annotated[Raw, harmless("none", "auto")] | UnsetType = UNSET
    audio: Unsupported = UNSET
    modalities: Annotated[Raw, harmless(["text"])] | UnsetType = UNSET
    web_search_options: Unsupported = UNSET
    reasoning_effort: Annotated[Raw, harmless("none")] | UnsetType = UNSET
    echo: Unsupported = UNSET
    continue_final_message: Unsupported = UNSET
    chat_template: Unsupported = UNSET
    documents: Unsupported = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_number(self.messages)
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "needs logprobs to be true")

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


_PROMPT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        {
            "type": "array",
            "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "minItems": 1,
        },
    ]
}


class CompletionRequest(GenerationRequest, kw_only=True):
    """``POST /v1/completions``; prompts.py reads ``prompt``."""

    prompt_param = "prompt"

    prompt: Annotated[Raw, Meta(extra_json_schema=_PROMPT_SCHEMA)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None

    suffix: Unsupported = UNSET
    prompt_embeds: Unsupported = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.echo and self.logprobs is not None:
            raise FieldError("echo", "logprobs of the prompt are not supported yet", UNSUPPORTED)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class TokenizeRequest(RequestBody, kw_only=True):
    """``POST /tokenize``: exactly one of ``prompt`` and ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("prompt", "give exactly one of prompt and messages")
        _check_number(self.messages or ())


class DetokenizeRequest(RequestBody, kw_only=True):
    """``POST /detokenize``"""

    model: str | None = None
    tokens: list[int]


def _check_number(messages: Sequence[ChatMessage]) -> None:
    contents = [message.content for message in messages]
    num = len(contents) + sum(len(content) for content in contents if isinstance(content, list))
    if num > MAX_MESSAGES:
        raise FieldError("messages", f"at most {MAX_MESSAGES} messages and parts, got {num}")
