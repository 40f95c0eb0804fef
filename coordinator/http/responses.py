"""The bodies of responses, for ``/openapi.json``; what is sent is built by hand (writer.py)."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

_DESCRIPTIONS = {
    400: "A field is wrong or not supported, or the context is too long.",
    404: "No such model.",
    503: "Not now: queue full, draining, or no worker. Retry-After says when.",
    504: "Not done within the time that a request may take.",
}


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Error(_Body):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: Error


class UsageBody(_Body):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class TopLogprob(_Body):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Body):
    content: list[TokenLogprob]
    refusal: None


class AssistantMessage(_Body):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoice(_Body):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class ChatCompletion(_Body):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_token_ids: list[int] | None = None


class ChatDelta(_Body):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(_Body):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class ChatCompletionChunk(_Body):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | None = None
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(_Body):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(_Body):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(_Body):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | None = None


class Model(_Body):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: None
    max_model_len: int


class ModelList(_Body):
    object: Literal["list"]
    data: list[Model]


class Health(_Body):
    status: Literal["ok"]


class Ready(_Body):
    ready: Literal[True]
    problems: list[str]
    redis_connected: bool


class Worker(_Body):
    instance: str
    role: str
    device: str
    running: int
    waiting: int
    free_pages: int
    num_pages: int
    free_state_slots: int
    num_state_slots: int
    accounting_error: str
    draining: bool
    gpu_temperature_c: float | None
    breaker: Literal["closed", "open", "half-open"]
    prompt_tokens_per_s: float
    output_tokens_per_s: float


class Status(_Body):
    problems: list[str]
    draining: bool
    queued: int
    running: int
    redis_connected: bool
    workers: list[Worker]


class Version(_Body):
    version: str


class Tokenized(_Body):
    count: int
    max_model_len: int
    tokens: list[int]


class Detokenized(_Body):
    prompt: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries of error responses; 413 and 408 come with every body."""
    return {
        status: {"model": ErrorBody, "description": _DESCRIPTIONS[status]} for status in statuses
    }
