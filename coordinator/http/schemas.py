"""The bodies of requests, at the HTTP edge only.

Types and fixed ranges are checked here; what depends on the model or the settings, in
sampling.py and prompts.py. Unknown fields are ignored, null means absent.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from coordinator.http.unsupported import (
    Unsupported,
    UnsupportedChatFields,
    UnsupportedCompletionFields,
    UnsupportedFields,
)

_INT32_MAX = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=_INT32_MAX)]
Prompt = str | list[int]


def _fault(param: str, message: str, kind: str = "invalid_value") -> PydanticCustomError:
    return PydanticCustomError(kind, message, {"param": param})


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _parse_prompts(value: Any) -> tuple[Prompt, ...]:
    """One of the four shapes, as a tuple of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise _fault("prompt", "must be a string or a list, and not an empty one")
    # NOTE: lists of ids get long; a set of types looks at each once, in C.
    kinds = set(map(type, value))
    if kinds == {str}:
        return tuple(value)
    if kinds == {int}:
        return (value,)
    if kinds == {list} and all(set(map(type, ids)) == {int} for ids in value):
        return tuple(value)
    raise _fault("prompt", "a list must hold strings, or integers, or non-empty integer lists")


def _refuse_later_roles(role: Any) -> Any:
    if role in ("tool", "function"):
        raise PydanticCustomError(
            "unsupported_parameter", "results of tools are not supported by this server yet"
        )
    return role


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


def _join_parts(value: Any) -> str | None:
    """A message's content as one string; null stays null."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("invalid_value", "must be a string or a list of text parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            known = isinstance(kind, str)
            raise PydanticCustomError(
                "unsupported_parameter" if known else "invalid_value",
                "only parts of type 'text' are supported",
            )
        if not isinstance(part.get("text"), str):
            raise PydanticCustomError("invalid_value", "a text part needs a string 'text'")
        texts.append(part["text"])
    return "".join(texts)


class ChatMessage(BaseModel):
    """One turn. ``developer`` is OpenAI's newer name of ``system``."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: Annotated[
        Literal["system", "developer", "user", "assistant"], BeforeValidator(_refuse_later_roles)
    ]
    content: Annotated[
        str | None,
        PlainValidator(_join_parts, json_schema_input_type=str | list[TextPart] | None),
    ] = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[Any, Unsupported()] = None
    function_call: Annotated[Any, Unsupported()] = None

    @model_validator(mode="after")
    def _has_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise PydanticCustomError("invalid_value", "content is missing")
        return self

    def rendered(self) -> dict[str, str]:
        """As the chat template sees it."""
        role = "system" if self.role == "developer" else self.role
        message = {"role": role, "content": self.content or ""}
        if self.name is not None:
            message["name"] = self.name
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        return message


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(UnsupportedFields):
    """What chat and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    best_of: Count | None = None
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0, le=_INT32_MAX)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=_INT32_MAX)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    logit_bias: (
        Annotated[dict[int, Annotated[float, Field(ge=-100, le=100)]], Field(fail_fast=True)] | None
    ) = None
    stop: (
        Annotated[
            list[Annotated[str, Field(min_length=1)]],
            Field(fail_fast=True),
            BeforeValidator(_one_or_many, json_schema_input_type=str | list[str]),
        ]
        | None
    ) = None
    stop_token_ids: Annotated[list[int], Field(fail_fast=True)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise _fault("stream_options", "only allowed when stream is true")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise _fault("best_of", "only supported when equal to n", "unsupported_parameter")
        return self


class ChatRequest(GenerationRequest, UnsupportedChatFields):
    """``POST /v1/chat/completions``"""

    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _asks_for_logprobs(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise _fault("top_logprobs", "needs logprobs to be true")
        return self


class CompletionRequest(GenerationRequest, UnsupportedCompletionFields):
    """``POST /v1/completions``"""

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(
            _parse_prompts, json_schema_input_type=str | list[str] | list[int] | list[list[int]]
        ),
    ]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _echoes_without_logprobs(self) -> Self:
        if self.echo and self.logprobs is not None:
            raise _fault(
                "echo", "logprobs of the prompt are not supported yet", "unsupported_parameter"
            )
        return self


class TokenizeRequest(BaseModel):
    """``POST /tokenize``: exactly one of ``prompt`` and ``messages``."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise _fault("prompt", "give exactly one of prompt and messages")
        return self


class DetokenizeRequest(BaseModel):
    """``POST /detokenize``"""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    tokens: Annotated[list[int], Field(fail_fast=True)]
