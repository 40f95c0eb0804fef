"""The bodies of ``POST /v1/messages`` and ``POST /v1/messages/count_tokens``."""

from typing import Annotated, Any

from msgspec import UNSET, Meta

from coordinator.http.cache_salt import CacheSalt
from coordinator.http.chat_schemas import TextPart, check_tool_names
from coordinator.http.messages.blocks import MessageParams, check_number_of_blocks
from coordinator.http.messages.choices import (
    OutputConfig,
    OutputFormat,
    Thinking,
    ThinkingEnabled,
    ToolChoice,
    ToolChoiceAny,
    ToolChoiceTool,
    ToolParam,
)
from coordinator.http.request_fields import FieldError, RequestBody, Unsupported
from coordinator.http.sampling_fields import INT32_MAX

IGNORED = {
    "billing_policy": "nothing is billed",
    "cache_control": "prefixes are cached without it",
    "context_management": "the conversation is taken as the client sends it",
    "diagnostics": "they explain misses of Anthropic's cache",
    "fallback_credit_token": "nothing is billed",
    "fallbacks": "there is one model",
    "inference_geo": "the model runs where the server is",
    "metadata": "it only names the end user",
    "service_tier": "there is one tier",
    "speed": "there is one speed",
}
"""Why each of these fields is ignored on purpose. Fields that are not known are ignored too."""


class CountTokensRequest(RequestBody, kw_only=True):
    """The fields that make a prompt. ``output_format`` is the older name of
    ``output_config.format``; ``chat_template_kwargs`` is vLLM's."""

    model: str
    messages: MessageParams
    system: str | list[TextPart] | None = None
    tools: list[ToolParam] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    container: Unsupported = UNSET
    mcp_servers: Unsupported = UNSET
    compaction: Unsupported = UNSET
    kv_transfer_params: Unsupported = UNSET
    thread: Unsupported = UNSET

    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except FieldError as error:
            if error.param == "thread":  # Anthropic's tool runner then tries without
                error.code = "thread_unsupported_request"
            raise
        check_number_of_blocks(self.messages)
        if self.continues and not self.messages[-1].is_text:
            message = "an assistant's last message is continued, so it must be text and not empty"
            raise FieldError(f"messages[{len(self.messages) - 1}].content", message)
        names = [tool.name for tool in self.tools or ()]
        check_tool_names(names)
        choice = self.tool_choice
        if isinstance(choice, ToolChoiceAny) and not names:
            raise FieldError("tool_choice", "'any' needs tools")
        if isinstance(choice, ToolChoiceTool) and choice.name not in names:
            raise FieldError("tool_choice.name", f"there is no tool {choice.name!r}")
        if self.output_format is not None and self.output_config and self.output_config.format:
            raise FieldError("output_format", "cannot be combined with output_config.format")

    @property
    def continues(self) -> bool:
        """True if the answer continues the last message."""
        return self.messages[-1].role == "assistant"

    @property
    def form(self) -> OutputFormat | None:
        """The form of the answer; None for any text."""
        return self.output_format or (self.output_config.format if self.output_config else None)


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A message to answer. ``cache_salt`` is the field of chats."""

    max_tokens: Annotated[int, Meta(ge=1, le=INT32_MAX)]
    stream: bool | None = None
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    cache_salt: CacheSalt | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # With tools it is the budget of all thoughts between the calls, and may be larger.
        if isinstance(self.thinking, ThinkingEnabled) and not self.tools:
            budget, most = self.thinking.budget_tokens, self.max_tokens
            if budget >= most:
                message = f"must be less than max_tokens ({most}), got {budget}"
                raise FieldError("thinking.budget_tokens", message)
