"""Prompts of a request as token ids, truncated if the request asks for it, and the room that they
leave for output."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Protocol, TypeVar

import msgspec

from coordinator.http.answer_form import form_of
from coordinator.http.app_context import AppContext
from coordinator.http.chat_schemas import Tool
from coordinator.http.errors import ApiError, invalid
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.text.chat_template import TemplateRefused
from coordinator.text.tokenizer import Tokenizer
from transport.wire.token_ids import TokenIds, packed

Prompt = str | list[int]
_Ids = Annotated[list[int], msgspec.Meta(min_length=1)]
_AnyIds = TypeVar("_AnyIds", TokenIds, list[int])

LOOKUP_LENS = 4
"""/tokenize and /detokenize take texts of up to so many times the model's context."""


class Conversation(Protocol):
    """The fields of a request that decide how its messages become a prompt."""

    messages: Any
    add_generation_prompt: bool | None
    add_special_tokens: bool | None
    continue_final_message: bool | None


def conversation_ids(context: AppContext, request: ChatRequest, max_len: int) -> TokenIds:
    """Token ids of a chat, with the tools and the salt of its request. A thought that the model
    would open is opened here if its length is limited or a form follows it: the form's grammar
    begins where the thought ends."""
    ids = chat_ids(
        context.tokenizer,
        request,
        () if request.tool_choice == "none" else request.tools or (),
        variables=request.template_variables,
        max_len=max_len,
        salt=context.salt(request.cache_salt),
    )
    if request.thinking_token_budget is not None or form_of(request) is not None:
        return context.tokenizer.with_thought(ids)
    return ids


def chat_ids(
    tokenizer: Tokenizer,
    request: Conversation,
    tools: Sequence[Tool],
    *,
    variables: Mapping[str, Any],
    max_len: int,
    salt: str,
) -> TokenIds:
    """Token ids of a conversation. A refusal by the template is a 400, and so are tools that it
    cannot show to the model."""
    if tools and (reason := tokenizer.dialect.no_tools):
        message = f"{reason}; send none, or set tool_choice to none"
        raise invalid("tools", message, "unsupported_parameter")
    told = {"tools": [msgspec.to_builtins(tool) for tool in tools]} if tools else {}
    rendered = [message.rendered() for message in request.messages]

    def encode(turns: Sequence[Mapping[str, Any]]) -> TokenIds:
        return tokenizer.encode_chat(
            turns,
            add_generation_prompt=request.add_generation_prompt is not False,
            add_special_tokens=bool(request.add_special_tokens),
            continue_final=bool(request.continue_final_message),
            variables={**told, **variables},
            max_len=max_len,
            salt=salt,
        )

    try:
        try:
            return encode(rendered)
        except TemplateRefused:
            if (merged := with_one_system_message(rendered)) == rendered:
                raise
            return encode(merged)
    except TemplateRefused as error:
        message = f"the chat template refused: {error}"
        raise invalid("messages", message, "template_refused") from error


def with_one_system_message(turns: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Join all system messages into one at the beginning, for templates that allow no other."""
    system = [turn["content"] for turn in turns if turn["role"] == "system"]
    others = [turn for turn in turns if turn["role"] != "system"]
    first = [{"role": "system", "content": "\n\n".join(system)}] if system else []
    return [*first, *others]


def read_prompts(raw: msgspec.Raw, max_prompts: int) -> Sequence[Prompt]:
    """Parse the prompts of a completion: a string, a list of strings, the ids of one prompt, or a
    list of such lists. Raises ApiError, also before a long list of lists is made."""
    json = bytes(raw)
    prompts: Sequence[Prompt]
    first_inside = json[1:].lstrip()[:1]
    try:
        if json[:1] == b'"':
            prompts = [msgspec.json.decode(json, type=str)]
        elif first_inside == b'"':
            prompts = msgspec.json.decode(json, type=list[str])
        elif first_inside == b"[":
            _check_number(json.count(b"[") - 1, max_prompts)
            prompts = msgspec.json.decode(json, type=list[_Ids])
        else:
            prompts = [msgspec.json.decode(json, type=_Ids)]
    except msgspec.ValidationError:
        shapes = "a string, or a list of strings, of integers, or of non-empty integer lists"
        raise invalid("prompt", f"must be {shapes}, and not an empty list") from None
    _check_number(len(prompts), max_prompts)
    return prompts


def _check_number(num_prompts: int, max_prompts: int) -> None:
    if num_prompts > max_prompts:
        raise invalid("prompt", f"at most {max_prompts} prompts a request, got {num_prompts}")


def completion_ids(
    tokenizer: Tokenizer,
    prompt: Prompt,
    *,
    add_special_tokens: bool | None,
    max_len: int,
    salt: str,
) -> TokenIds:
    """Token ids of one prompt. Raises ApiError for ids that the model lacks."""
    if isinstance(prompt, str):
        add = add_special_tokens is not False
        return tokenizer.encode(prompt, add_special_tokens=add, max_len=max_len, salt=salt)
    if len(prompt) > max_len:
        raise too_long("prompt", len(prompt), max_len)
    check_token_ids("prompt", prompt, tokenizer)
    return packed(prompt)


def check_lookup(param: str, num_tokens: int, max_len: int) -> None:
    """Raises ApiError for more tokens than one /tokenize or /detokenize may convert."""
    if num_tokens > LOOKUP_LENS * max_len:
        raise invalid(
            param,
            f"at least {num_tokens} tokens; at most {LOOKUP_LENS * max_len} are taken at a time, "
            f"{LOOKUP_LENS} times the context",
            "context_length_exceeded",
        )


def check_token_ids(param: str, ids: Collection[int], tokenizer: Tokenizer) -> None:
    """Raises ApiError unless the tokenizer could have made ``ids``."""
    if ids and not (min(ids) >= 0 and max(ids) < tokenizer.num_valid_ids):
        raise invalid(param, f"token ids must be 0 to {tokenizer.num_valid_ids - 1}")


def room_for_output(request: GenerationRequest, prompt_len: int, max_len: int) -> int:
    """Limit of output tokens: the number requested, or the default (None: all) as far as it fits.
    Raises ApiError if prompt and output do not fit together."""
    if prompt_len == 0:
        raise invalid(request.prompt_param, "has no tokens; at least one is needed")
    left, (asked, asked_param) = max_len - prompt_len, request.max_tokens_asked
    if left < 1 or (asked is not None and asked > left):
        param = request.prompt_param if left < 1 else asked_param
        raise too_long(param, prompt_len, max_len, asked)
    if asked is not None:
        return asked
    return left if request.default_max_tokens is None else min(left, request.default_max_tokens)


def too_long(param: str, prompt_len: int, max_len: int, asked: int | None = None) -> ApiError:
    """The error for a prompt that does not fit into ``max_len`` tokens together with the requested
    output."""
    many = "at least " if prompt_len > max_len else ""
    output = f" and {asked} output tokens are asked for" if asked is not None else ""
    return ApiError(
        400,
        f"This model's maximum context length is {max_len} tokens, but the prompt has "
        f"{many}{prompt_len} tokens{output}. Shorten the prompt or lower max_tokens.",
        param=param,
        code="context_length_exceeded",
    )


def max_read_len(request: GenerationRequest, max_len: int) -> int:
    """Number of prompt tokens to compute ids for: a prompt that is truncated may be longer than
    ``max_len``."""
    return max_len if request.truncate_prompt_tokens is None else LOOKUP_LENS * max_len


def truncated(prompt: _AnyIds, request: GenerationRequest, max_len: int) -> _AnyIds:
    """The last ``truncate_prompt_tokens`` tokens, or with ``truncation_side`` "right" the first. -1
    stands for as many as leave room for the output within ``max_len``. Raises ApiError for a prompt
    that may not have been read whole."""
    length = request.truncate_prompt_tokens
    if length is None:
        return prompt
    check_lookup(request.prompt_param, len(prompt), max_len)
    if length == -1:
        length = max(1, max_len - (request.num_output_asked or 1))
    if len(prompt) <= length:
        return prompt
    return prompt[:length] if request.truncation_side == "right" else prompt[len(prompt) - length :]
