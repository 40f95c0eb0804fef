"""From the bytes of a body to what its route needs: parsed, checked, and tokenized.

Plain functions that wait for nothing: small bodies are prepared in a thread, heavy ones in another
process (bodies/parsers.py).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
from msgspec import structs

from coordinator.http.answer_form import check_form
from coordinator.http.app_context import AppContext
from coordinator.http.body_checks import (
    READABLE_DEPTH,
    STRUCTURE_BYTES,
    check_structure,
    from_validation,
    half_of_a_pair,
    has_messages,
    nests_too_deeply,
)
from coordinator.http.chat_schemas import ChatMessage
from coordinator.http.errors import ApiError, invalid
from coordinator.http.http_settings import HttpSettings
from coordinator.http.lookups import detokenized, input_tokens, tokenized, tokens_counted
from coordinator.http.messages.requests import CountTokensRequest, MessagesRequest
from coordinator.http.messages.translation import chat_of, client_field_names
from coordinator.http.prompts import (
    Prompt,
    completion_ids,
    conversation_ids,
    max_read_len,
    read_prompts,
    truncated,
)
from coordinator.http.request_schemas import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationRequest,
    TokenizeRequest,
)
from coordinator.http.responses.conversation import fitting
from coordinator.http.responses.references import ReferringBody, references_of
from coordinator.http.responses.request import ResponseRequest
from coordinator.http.responses.turn import turn_of
from transport.wire.token_ids import TokenIds

Kind = Literal[
    "chat", "completion", "response", "references", "messages", "count_tokens", "tokenize",
    "detokenize", "input_tokens", "invocation",
]  # fmt: skip
AnyRequest = (
    ChatRequest
    | CompletionRequest
    | ResponseRequest
    | ReferringBody
    | MessagesRequest
    | CountTokensRequest
    | TokenizeRequest
    | DetokenizeRequest
)

_DECODERS: dict[Kind, msgspec.json.Decoder[AnyRequest]] = {
    "chat": msgspec.json.Decoder(ChatRequest),
    "completion": msgspec.json.Decoder(CompletionRequest),
    "messages": msgspec.json.Decoder(MessagesRequest),
    "count_tokens": msgspec.json.Decoder(CountTokensRequest),
    "response": msgspec.json.Decoder(ResponseRequest),
    "input_tokens": msgspec.json.Decoder(ResponseRequest),
    "references": msgspec.json.Decoder(ReferringBody),
    "tokenize": msgspec.json.Decoder(TokenizeRequest),
    "detokenize": msgspec.json.Decoder(DetokenizeRequest),
}
_FLOAT_FOR_INT = "got `float`"


@dataclass(frozen=True)
class Prepared:
    """A request that generates, with the token ids of its prompts instead of their texts.
    ``echoes``: the texts, with ``echo``. ``origin``: JSON of what the route needs of another API's
    request that was translated to ``request``."""

    request: GenerationRequest
    prompts: list[TokenIds]
    echoes: list[str] | None = None
    origin: bytes = b""

    @property
    def prompt_tokens(self) -> int:
        """Number of prompt tokens. Each prompt counts once, also for n > 1."""
        return sum(map(len, self.prompts))

    @property
    def kind(self) -> Kind:
        """The kind of ``request``: "chat" also if it was translated from another API's request."""
        return "chat" if isinstance(self.request, ChatRequest) else "completion"


def parse(kind: Kind, body: bytes) -> AnyRequest:
    """The validated body. An "invocation" is a chat if it has messages, else a completion. Raises
    ApiError."""
    try:
        if nests_too_deeply(body):
            raise _too_deep()
        if kind == "invocation":
            kind = "chat" if has_messages(body) else "completion"
        decode = _DECODERS[kind].decode
        body.decode()  # msgspec skips unknown fields even if they are not UTF-8
        if len(body) > STRUCTURE_BYTES:
            check_structure(body)
        try:
            return decode(body)
        except msgspec.ValidationError as error:
            if _FLOAT_FOR_INT not in str(error):
                raise
            return decode(_with_whole_numbers(body))
    except msgspec.ValidationError as error:
        raise from_validation(error) from None
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        problem = half_of_a_pair(body) or str(error)
        raise ApiError(400, f"Invalid JSON: {problem}", code="invalid_json") from None


def _too_deep() -> ApiError:
    message = f"Invalid JSON: arrays and objects are nested more than {READABLE_DEPTH} deep"
    return ApiError(400, message, code="invalid_json")


def prepare(
    context: AppContext, kind: Kind, request: AnyRequest, earlier: bytes = b""
) -> Prepared | bytes:
    """Check and tokenize a request of ``kind``: a Prepared, or the JSON of an answer. Raises
    ApiError. ``earlier``: JSON of what earlier responses hold of the conversation."""
    if isinstance(request, ResponseRequest):
        make = _response if kind == "response" else input_tokens
        return make(context, request, earlier)
    return _PREPARE[kind](context, request)


def _chat(context: AppContext, request: ChatRequest) -> Prepared:
    _check(context, request)
    ids = conversation_ids(context, request, max_read_len(request, context.max_model_len))
    request.messages = [ChatMessage(role="user", content="")]
    request.chat_template_kwargs = request.continue_final_message = None
    return Prepared(request, [truncated(ids, request, context.max_model_len)])


def _response(context: AppContext, request: ResponseRequest, earlier: bytes) -> Prepared:
    chat, turn = turn_of(request, earlier)
    if request.truncation == "auto":
        room = context.max_model_len - (request.max_output_tokens or 1)

        def fits(messages: list[ChatMessage]) -> bool:
            given = structs.replace(chat, messages=messages)
            max_len = max_read_len(chat, context.max_model_len)
            return len(conversation_ids(context, given, max_len)) <= room

        chat.messages = fitting(chat.messages, fits)
    return replace(_chat(context, chat), origin=msgspec.json.encode(turn))


def _invocation(context: AppContext, request: ChatRequest | CompletionRequest) -> Prepared:
    if isinstance(request, ChatRequest):
        return _chat(context, request)
    return _completion(context, request)


def _references(_: AppContext, body: ReferringBody) -> bytes:
    return msgspec.json.encode(references_of(body))


def _messages(context: AppContext, request: MessagesRequest) -> Prepared:
    """Translate a Messages request to a chat. Its ``max_completion_tokens`` is set only if the
    context has room for fewer tokens than ``max_tokens``, which agents set as high as they can."""
    with client_field_names():
        found = _chat(context, chat := chat_of(request))
    left = context.max_model_len - found.prompt_tokens
    if 0 < left < request.max_tokens:
        chat.max_completion_tokens = left
    return found


def _completion(context: AppContext, request: CompletionRequest) -> Prepared:
    tokenizer, max_len = context.tokenizer, context.max_model_len
    prompts = read_prompts(request.prompt, context.settings.max_choices)
    _check(context, request, len(prompts))

    def cut(prompt: Prompt) -> TokenIds:
        ids = completion_ids(
            tokenizer,
            prompt if isinstance(prompt, str) else truncated(prompt, request, max_len),
            add_special_tokens=request.add_special_tokens,
            max_len=max_read_len(request, max_len),
            salt=context.salt(request.cache_salt),
        )
        return truncated(ids, request, max_len)

    ids = [cut(prompt) for prompt in prompts]
    echoes = None
    if request.echo:
        whole = request.truncate_prompt_tokens is None
        echoes = [
            prompt
            if whole and isinstance(prompt, str)
            else tokenizer.decode(its_ids, skip_special_tokens=False)
            for prompt, its_ids in zip(prompts, ids, strict=True)
        ]
    request.prompt = msgspec.Raw(b'""')
    return Prepared(request, ids, echoes)


def _check(context: AppContext, request: GenerationRequest, num_prompts: int = 1) -> None:
    """Raises ApiError for what can be refused before anything is tokenized."""
    context.check_model(request.model)
    _check_caps(request, context.settings)
    check_form(request)
    num_choices = num_prompts * (request.n or 1)
    if num_choices > context.settings.max_choices:
        cap = context.settings.max_choices
        raise invalid("prompt", f"prompts × n may be at most {cap}, got {num_choices}")


def _check_caps(request: GenerationRequest, settings: HttpSettings) -> None:
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


def _with_whole_numbers(body: bytes) -> bytes:
    """The body with integers in place of numbers like ``5.0``, which some clients send, in its
    fields and in lists of numbers."""
    fields = msgspec.json.decode(body, type=dict[str, Any])
    for name, value in fields.items():
        fields[name] = [_whole(v) for v in value] if isinstance(value, list) else _whole(value)
    return msgspec.json.encode(fields)


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_PREPARE: dict[Kind, Callable[[AppContext, Any], Prepared | bytes]] = {
    "chat": _chat,
    "completion": _completion,
    "invocation": _invocation,
    "references": _references,
    "messages": _messages,
    "count_tokens": tokens_counted,
    "tokenize": tokenized,
    "detokenize": detokenized,
}
