"""Log-probabilities of output tokens, in the forms of chats and of completions.

They are written token by token, as the tokens arrive. Writing those of a long answer at once, at
its end, would block the event loop, and with it every stream, for a second.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Raw, structs

from coordinator.core.contract import Token
from coordinator.http.request_schemas import ChatRequest, GenerationRequest
from coordinator.http.response_schemas import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)

_FLOOR = -9999.0  # JSON has no -inf; vLLM writes this value
_encode = msgspec.json.Encoder().encode

CompletionScore = tuple[str, float, dict[str, float]]
"""Name of a token, its log-probability, and those of the most probable tokens in its place, itself
included."""


def scorer(
    request: GenerationRequest, token_bytes: Mapping[int, bytes]
) -> Callable[[Token], Any] | None:
    """The function that writes the log-probabilities of a token for ``chat_logprobs`` or
    ``completion_logprobs``; None if the request asks for none."""
    if request.num_logprobs is None:
        return None
    score = _chat_score if isinstance(request, ChatRequest) else _completion_score
    return partial(score, token_bytes, bool(request.return_tokens_as_token_ids))


def _chat_score(token_bytes: Mapping[int, bytes], by_id: bool, token: Token) -> Raw | None:
    """The JSON of a TokenLogprob; None for a token without log-probabilities."""
    if token.logprobs is None:
        return None

    def top(token_id: int, logprob: float) -> TopLogprob:
        raw = token_bytes[token_id]
        text = name_by_id(token_id) if by_id else raw.decode("utf-8", "replace")
        return TopLogprob(token=text, logprob=finite(logprob), bytes=list(raw))

    chosen = top(token.token_id, token.logprobs.chosen)
    best = [top(*pair) for pair in token.logprobs.top]
    return Raw(_encode(TokenLogprob(**structs.asdict(chosen), top_logprobs=best)))


def _completion_score(
    token_bytes: Mapping[int, bytes], by_id: bool, token: Token
) -> CompletionScore | None:
    if token.logprobs is None:
        return None

    def name(token_id: int) -> str:
        return token_name(token_id, token_bytes, by_id=by_id)

    chosen, logprob = name(token.token_id), finite(token.logprobs.chosen)
    top = {name(token_id): finite(value) for token_id, value in token.logprobs.top}
    return chosen, logprob, top | {chosen: logprob}


def chat_logprobs(scores: Sequence[Any]) -> ChatLogprobs:
    return ChatLogprobs(content=[score for score in scores if score is not None])


def completion_logprobs(
    scores: Sequence[CompletionScore | None], offsets: Sequence[int]
) -> CompletionLogprobs:
    """The lists of a completion's log-probabilities; ``offsets`` are those of the tokens in the
    text."""
    scored = [(score, at) for score, at in zip(scores, offsets, strict=True) if score is not None]
    return CompletionLogprobs(
        tokens=[name for (name, _, _), _ in scored],
        token_logprobs=[logprob for (_, logprob, _), _ in scored],
        top_logprobs=[top for (_, _, top), _ in scored],
        text_offset=[at for _, at in scored],
    )


def name_by_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def token_name(token_id: int, token_bytes: Mapping[int, bytes], *, by_id: bool) -> str:
    """Name of a token: its text, or OpenAI's notation for a part of a character. ``by_id``: vLLM's
    notation for ``return_tokens_as_token_ids``."""
    if by_id:
        return name_by_id(token_id)
    raw = token_bytes[token_id]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite(logprob: float) -> float:
    return logprob if logprob > _FLOOR else _FLOOR
