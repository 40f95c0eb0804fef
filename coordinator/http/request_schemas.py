"""The bodies of requests: decoded by msgspec, described in /openapi.json.

Types, ranges and relations between fields are checked here; what depends on the model or the
settings, in generation.py and prompts.py. Unknown fields are ignored, null means absent. A
field that other servers have and this one does not is ``Unsupported``: refused, never ignored.
"""

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from coordinator.http.cache_salt import CacheSalt
from coordinator.http.chat_schemas import (
    Messages,
    ResponseFormat,
    StructuredOutputs,
    Tool,
    ToolChoice,
    check_continued,
    check_number,
    check_tool_names,
)
from coordinator.http.known_fields import KnownFields
from coordinator.http.request_fields import (
    UNSUPPORTED,
    FieldError,
    RequestBody,
    Unsupported,
    harmless,
    whole,
)
from coordinator.http.response_names import NAME_PATTERN
from coordinator.http.sampling_fields import INT32_MAX
from coordinator.text.repetition import RepetitionDetection

Count = Annotated[int, Meta(ge=1, le=INT32_MAX)]


class StreamOptions(Struct, kw_only=True, omit_defaults=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(KnownFields, kw_only=True):
    """The fields that chats and completions share. ``regex``, ``ebnf`` and
    ``structural_tag`` are SGLang's, ``grammar`` is llama.cpp's, and ``json_schema`` is a field of
    both.

    ``prompt_param``: the field with the prompt. ``num_logprobs``: how many of the most probable
    tokens are returned with each token; None: no log-probabilities.
    """

    prompt_param: ClassVar[str]
    default_max_tokens: ClassVar[int | None] = None

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Count | None = None
    best_of: Count | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    return_token_ids: bool | None = None
    cache_salt: CacheSalt | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    grammar: str | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[Annotated[str, Meta(min_length=1)]] | None = None

    request_id: Annotated[str, whole(NAME_PATTERN)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_tokens_as_token_ids: bool | None = None
    repetition_detection: RepetitionDetection | None = None
    stream_interval: Count | None = None

    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stream_options is not None and not self.stream:
            raise FieldError("stream_options", "only allowed when stream is true")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise FieldError("best_of", "only supported when equal to n", UNSUPPORTED)
        if self.prompt_logprobs is not None and self.stream:
            raise FieldError("prompt_logprobs", "not available when stream is true")
        asked, param = self.max_tokens_asked
        if asked == 0 and not self.answers_without_output:
            raise FieldError(param, "must be at least 1 without echo or prompt_logprobs")

    @property
    def num_logprobs(self) -> int | None:
        raise NotImplementedError

    @property
    def num_echoed_logprobs(self) -> int | None:
        """``num_logprobs`` for the tokens of an echoed prompt."""
        return None

    @property
    def num_prompt_logprobs(self) -> int | None:
        """``num_logprobs`` for the tokens of the prompt, for all fields that need them."""
        asked = (self.num_echoed_logprobs, self.prompt_logprobs)
        return max((num for num in asked if num is not None), default=None)

    @property
    def answers_without_output(self) -> bool:
        """True if there is something to answer with ``max_tokens`` 0."""
        return self.prompt_logprobs is not None

    @property
    def max_tokens_asked(self) -> tuple[int | None, str]:
        """The requested limit of output tokens (None: the default), and the field that sets it."""
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens, "max_completion_tokens"
        return self.max_tokens, "max_tokens"

    @property
    def num_output_asked(self) -> int | None:
        """Limit of output tokens; None: as many as fit."""
        asked, _ = self.max_tokens_asked
        return self.default_max_tokens if asked is None else asked


class ChatRequest(GenerationRequest, kw_only=True):
    """``POST /v1/chat/completions``"""

    prompt_param = "messages"

    messages: Messages
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    add_special_tokens: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool | None = None
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None

    audio: Unsupported = UNSET
    chat_template: Unsupported = UNSET
    documents: Unsupported = UNSET
    echo: Unsupported = UNSET
    function_call: Annotated[Raw, harmless("none", "auto")] | UnsetType = UNSET
    functions: Unsupported = UNSET
    media_io_kwargs: Unsupported = UNSET
    mm_processor_kwargs: Unsupported = UNSET
    modalities: Annotated[Raw, harmless(["text"])] | UnsetType = UNSET
    return_prompt_text: Unsupported = UNSET
    verbosity: Annotated[Raw, harmless("medium")] | UnsetType = UNSET
    web_search_options: Unsupported = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.messages)
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "needs logprobs to be true")
        if self.thinking_token_budget == -1:  # vLLM's value for no limit
            self.thinking_token_budget = None
        if self.continue_final_message:
            check_continued(self.messages, self.add_generation_prompt)
        self._check_tools()

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template, besides the messages and the tools."""
        effort = self.reasoning_effort
        given = {} if effort is None else {"enable_thinking": effort != "none"}
        return given | (self.chat_template_kwargs or {})

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        check_tool_names(names)
        known = set(names)
        choice = self.tool_choice
        if isinstance(choice, ToolChoice):
            allowed = choice.allowed_tools
            chosen = [tool.function.name for tool in allowed.tools] if allowed else [choice.name]
            if unknown := [name for name in chosen if name not in known]:
                raise FieldError("tool_choice", f"there is no tool {unknown[0]!r}")
            if allowed:
                kept = set(chosen)
                self.tools = [tool for tool in self.tools or () if tool.function.name in kept]
                self.tool_choice = choice = allowed.mode
        if choice == "required" and not self.tools:
            raise FieldError("tool_choice", "'required' needs tools")

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
    """``POST /v1/completions``; prompts.py parses ``prompt``."""

    prompt_param = "prompt"
    default_max_tokens = 16  # the default of OpenAI and vLLM

    prompt: Annotated[Raw, Meta(extra_json_schema=_PROMPT_SCHEMA)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_special_tokens: bool | None = None

    suffix: Unsupported = UNSET
    prompt_embeds: Unsupported = UNSET
    thinking_token_budget: Annotated[Raw, harmless(-1)] | UnsetType = UNSET

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_echoed_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None

    @property
    def answers_without_output(self) -> bool:
        return bool(self.echo) or super().answers_without_output


class PoolsRequest(RequestBody, kw_only=True):
    """Numbers of workers that compute prompts, and of those that decode. With ``prefill`` 0 all do
    both."""

    prefill: int
    decode: int


class TokenizeRequest(RequestBody, kw_only=True):
    """``POST /tokenize``: exactly one of ``prompt`` and ``messages``."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    chat_template: Unsupported = UNSET
    media_io_kwargs: Unsupported = UNSET
    mm_processor_kwargs: Unsupported = UNSET

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.prompt is None) == (self.messages is None):
            raise FieldError("prompt", "give exactly one of prompt and messages")
        if self.messages is not None:
            check_number(self.messages)
            if self.continue_final_message:
                check_continued(self.messages, self.add_generation_prompt)


class DetokenizeRequest(RequestBody, kw_only=True):
    """``POST /detokenize``"""

    model: str | None = None
    tokens: list[int]
