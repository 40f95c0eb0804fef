"""Requests that only count or convert tokens, answered as soon as they are parsed."""

import msgspec

from coordinator.http.app_context import AppContext
from coordinator.http.messages.bodies import TokensCount
from coordinator.http.messages.requests import CountTokensRequest
from coordinator.http.messages.translation import chat_of, client_field_names
from coordinator.http.prompts import (
    LOOKUP_LENS,
    chat_ids,
    check_lookup,
    check_token_ids,
    completion_ids,
    conversation_ids,
)
from coordinator.http.request_schemas import DetokenizeRequest, TokenizeRequest
from coordinator.http.response_schemas import Detokenized, InputTokens, Tokenized
from coordinator.http.responses.request import ResponseRequest
from coordinator.http.responses.turn import turn_of


def input_tokens(context: AppContext, request: ResponseRequest, earlier: bytes) -> bytes:
    context.check_model(request.model)
    chat, _ = turn_of(request, earlier)
    ids = conversation_ids(context, chat, LOOKUP_LENS * context.max_model_len)
    check_lookup("input", len(ids), context.max_model_len)
    return msgspec.json.encode(InputTokens(input_tokens=len(ids)))


def tokenized(context: AppContext, request: TokenizeRequest) -> bytes:
    context.check_model(request.model)
    max_len = LOOKUP_LENS * context.max_model_len
    if request.messages is not None:
        param = "messages"
        ids = chat_ids(
            context.tokenizer,
            request,
            request.tools or (),
            variables=request.chat_template_kwargs or {},
            max_len=max_len,
            salt=context.salt(),
        )
    else:
        assert request.prompt is not None, "the schema wants one of them"
        param = "prompt"
        ids = completion_ids(
            context.tokenizer,
            request.prompt,
            add_special_tokens=request.add_special_tokens,
            max_len=max_len,
            salt=context.salt(),
        )
    check_lookup(param, len(ids), context.max_model_len)
    answer = Tokenized(count=len(ids), max_model_len=context.max_model_len, tokens=ids.tolist())
    if request.return_token_strs:
        answer.token_strs = context.tokenizer.token_strs(ids)
    return msgspec.json.encode(answer)


def tokens_counted(context: AppContext, request: CountTokensRequest) -> bytes:
    context.check_model(request.model)
    with client_field_names():
        ids = conversation_ids(context, chat_of(request), LOOKUP_LENS * context.max_model_len)
    check_lookup("messages", len(ids), context.max_model_len)
    return msgspec.json.encode(TokensCount(input_tokens=len(ids)))


def detokenized(context: AppContext, request: DetokenizeRequest) -> bytes:
    context.check_model(request.model)
    check_token_ids("tokens", request.tokens, context.tokenizer)
    check_lookup("tokens", len(request.tokens), context.max_model_len)
    text = context.tokenizer.decode(request.tokens, skip_special_tokens=False)
    return msgspec.json.encode(Detokenized(prompt=text))
