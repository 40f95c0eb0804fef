"""The bodies of responses: encoded by msgspec, described in /openapi.json.

A field that is UNSET is left out; ``token_ids`` and ``prompt_token_ids`` are present if a request
asks for token ids. The timeline of a request is in timeline.py.

``stop_reason`` is vLLM's field: the stop string, or the stop token of the request, that ended a
choice. ``matched_stop`` is SGLang's: the same, or the model's own end token.
``system_fingerprint`` changes with the version of the server and with the model.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from transport.wire.sampling import FinishReason

Finish = FinishReason | Literal["repetition"]


class Body(Struct, forbid_unknown_fields=True):
    """A JSON object with these fields and no others."""


class Error(Body, kw_only=True):
    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str | None


class ErrorBody(Struct):
    error: Error


class PromptTokensDetails(Body, kw_only=True):
    """``cached_tokens``: tokens of the prompt that came from the prefix cache, for all choices."""

    cached_tokens: int = 0


class CompletionTokensDetails(Body, kw_only=True):
    """``reasoning_tokens``: tokens of the thoughts of all choices."""

    reasoning_tokens: int


class Usage(Body, kw_only=True):
    """Numbers of tokens of a request: each prompt once, the output of all its choices. Only that of
    a chat has ``completion_tokens_details``."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails = msgspec.field(default_factory=PromptTokensDetails)
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET

    @staticmethod
    def of(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> "Usage":
        return Usage(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=cached_tokens),
        )


class TopLogprob(Body, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob, kw_only=True):
    top_logprobs: list[TopLogprob]


class PromptLogprob(Body, kw_only=True):
    """Log-probability of a prompt token; ``rank`` is 1 for the most probable token."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None] | UnsetType
"""For each token of a prompt, by token id: its own log-probability first, then the most probable
alternatives; null for the first token, which follows nothing."""


class ChatLogprobs(Body, kw_only=True):
    content: list[TokenLogprob]
    refusal: None = None


class FunctionCall(Body, kw_only=True):
    """A call of a function; ``arguments`` is a JSON object as text."""

    name: str
    arguments: str


class ToolCall(Body, kw_only=True):
    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class AssistantMessage(Body, kw_only=True):
    """The answer of the model. ``reasoning_content`` and ``reasoning`` (vLLM's newer name) are the
    thought."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


ChatFinish = Finish | Literal["tool_calls"]


class ChatChoice(Body, kw_only=True):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    stop_reason: int | str | None = None
    matched_stop: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Body, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs = UNSET


class FunctionCallDelta(Body, kw_only=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Body, kw_only=True):
    """A part of call ``index`` of the message: the first part has id and name, each one a piece of
    the arguments."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCallDelta


class ChatDelta(Body, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(Body, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None
    stop_reason: int | str | UnsetType | None = UNSET
    matched_stop: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatCompletionChunk(Body, kw_only=True):
    """The data of an event. With ``stream_options.include_usage`` a last chunk without choices has
    the usage, which is null in the others; with ``continuous_usage_stats`` every chunk has it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionLogprobs(Body, kw_only=True):
    """Log-probabilities of the output; with ``echo`` also those of the prompt, whose first token
    has null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Body, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: int | str | UnsetType | None = UNSET
    matched_stop: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs = UNSET


class Completion(Body, kw_only=True):
    """A response, or the data of an event."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class Model(Body, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    root: str
    parent: None = None
    max_model_len: int


class ModelList(Body, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(Body, kw_only=True):
    status: Literal["ok"] = "ok"


class Ready(Body, kw_only=True):
    ready: Literal[True] = True
    problems: list[str]
    redis_connected: bool


class Version(Body, kw_only=True):
    version: str


class Load(Body, kw_only=True):
    server_load: int


class ModelInfo(Body, kw_only=True):
    model_path: str
    tokenizer_path: str
    is_generation: Literal[True] = True
    has_chat_template: bool


class ServerInfo(Body, kw_only=True):
    version: str
    model_path: str
    served_model_name: str
    context_length: int
    tool_call_parser: str | None
    reasoning_parser: str | None
    status: Literal["ready", "not ready"]


class InputTokens(Body, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class Tokenized(Body, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Body, kw_only=True):
    prompt: str
