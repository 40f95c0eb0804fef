"""The body of ``POST /v1/responses``: decoded by msgspec, described in /openapi.json.

Source: OpenAI's Responses API, as the types of its Python client have it. What OpenAI computes with
its own services (stored prompts, conversations) is refused; tools.py has the tools.
"""

from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct

from coordinator.http.cache_salt import CacheSalt
from coordinator.http.chat_schemas import (
    MAX_MESSAGES,
    JsonObjectFormat,
    StructuredOutputs,
    TextFormat,
)
from coordinator.http.known_fields import KnownFields
from coordinator.http.request_fields import FieldError, Unsupported
from coordinator.http.request_schemas import Count
from coordinator.http.responses.items import InputItem
from coordinator.http.responses.tools import ResponseTool, ResponseToolChoice
from coordinator.http.sampling_fields import INT32_MAX

LOGPROBS: Final = "message.output_text.logprobs"
Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "file_search_call.results",
    "web_search_call.results", "web_search_call.action.sources", "code_interpreter_call.outputs",
    "message.input_image.image_url", "computer_call_output.output.image_url",
]  # fmt: skip
"""Values of ``include``. Only log-probabilities have an effect: thoughts are not encrypted, and no
tool of OpenAI's is called."""
_Short = Annotated[str, Meta(max_length=512)]


class ResponseJsonSchema(
    Struct, tag_field="type", tag="json_schema", kw_only=True, rename={"schema_": "schema"}
):
    """JSON that fits a schema."""

    name: str
    schema_: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextSettings(Struct, kw_only=True, omit_defaults=True):
    format: TextFormat | JsonObjectFormat | ResponseJsonSchema | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningSettings(Struct, kw_only=True, omit_defaults=True):
    """Settings of the thought. ``summary``: the thought itself is returned as its summary, as
    nothing shortens it."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "detailed"] | None = None
    generate_summary: Literal["auto", "detailed"] | None = None
    context: Literal["auto", "current_turn"] | None = None
    mode: Literal["standard"] | None = None


class ResponseStreamOptions(Struct, kw_only=True, omit_defaults=True):
    """Options of a stream. Nothing is obfuscated, whatever ``include_obfuscation`` says."""

    include_obfuscation: bool | None = None


class ResponseRequest(KnownFields, kw_only=True):
    """``POST /v1/responses``"""

    model: str | None = None
    input: str | list[InputItem]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    tools: list[ResponseTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    include: list[Included] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    metadata: Annotated[dict[str, _Short], Meta(max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    chat_template_kwargs: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    cache_salt: CacheSalt | None = None

    access_programs: Unsupported = UNSET
    allowed_token_ids: Unsupported = UNSET
    bad_words: Unsupported = UNSET
    context_management: Unsupported = UNSET
    conversation: Unsupported = UNSET
    ebnf: Unsupported = UNSET
    enable_response_messages: Unsupported = UNSET
    grammar: Unsupported = UNSET
    image: Unsupported = UNSET
    json_schema: Unsupported = UNSET
    mm_processor_kwargs: Unsupported = UNSET
    previous_input_messages: Unsupported = UNSET
    previous_response: Unsupported = UNSET
    prompt: Unsupported = UNSET
    regex: Unsupported = UNSET
    structural_tag: Unsupported = UNSET
    request_id: Unsupported = UNSET  # the ids of items contain that of their response

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "only allowed when stream is true")
        if self.background and self.stream:
            raise FieldError("background", "cannot be streamed: ask for the response by its id")
        if self.background and not self.is_stored:
            raise FieldError("background", "needs store to be true")
        if self.top_logprobs and not self.includes_logprobs:
            raise FieldError("top_logprobs", f"needs include to have {LOGPROBS!r}")
        if isinstance(self.input, list):
            if not self.input and self.previous_response_id is None:
                raise FieldError("input", "must not be empty")
            check_number(self.input)

    @property
    def includes_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    @property
    def is_stored(self) -> bool:
        """True if the client wants the response to be stored."""
        return self.store is not False

    @property
    def summarizes(self) -> bool:
        """True if the thought is returned as its summary."""
        settings = self.reasoning
        return bool(settings and (settings.summary or settings.generate_summary))


def check_number(items: list[InputItem]) -> None:
    """Raises FieldError for more items and parts than a conversation may have."""
    num = sum(item.num_parts for item in items)
    if num > MAX_MESSAGES:
        raise FieldError("input", f"at most {MAX_MESSAGES} items and parts, got {num}")
