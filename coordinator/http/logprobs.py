"""Log probabilities in the formats of chat and of completions."""

from collections.abc import Mapping, Sequence

from coordinator.core.contract import Token
from coordinator.http.response_schemas import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenLogprob,
    TopLogprob,
)

_FLOOR = -9999.0  # JSON has no -inf; vLLM writes this


def chat_logprobs(tokens: Sequence[Token], token_bytes: Mapping[int, bytes]) -> ChatLogprobs:
    """Each token's logprob, and those of the most probable tokens in its place."""

    def top(token_id: int, logprob: float) -> TopLogprob:
        raw = token_bytes[token_id]
        text = raw.decode("utf-8", "replace")
        return TopLogprob(token=text, logprob=_finite(logprob), bytes=list(raw))

    content = []
    for token in tokens:
        if token.logprobs is not None:
            chosen = top(token.token_id, token.logprobs.chosen)
            content.append(
                TokenLogprob(
                    token=chosen.token, logprob=chosen.logprob, bytes=chosen.bytes,
                    top_logprobs=[top(*pair) for pair in token.logprobs.top],
                )
            )  # fmt: skip
    return ChatLogprobs(content=content)


def completion_logprobs(
    tokens: Sequence[Token], offsets: Sequence[int], token_bytes: Mapping[int, bytes]
) -> CompletionLogprobs:
    """Parallel lists; ``top_logprobs`` always holds the sampled token too."""
    scored = [(t, t.logprobs, o) for t, o in zip(tokens, offsets, strict=True) if t.logprobs]
    names = [_name(token_bytes[token.token_id]) for token, _, _ in scored]
    return CompletionLogprobs(
        tokens=names,
        token_logprobs=[_finite(logprobs.chosen) for _, logprobs, _ in scored],
        top_logprobs=[
            {_name(token_bytes[token_id]): _finite(value) for token_id, value in logprobs.top}
            | {name: _finite(logprobs.chosen)}
            for name, (_, logprobs, _) in zip(names, scored, strict=True)
        ],
        text_offset=[offset for _, _, offset in scored],
    )


def _name(raw: bytes) -> str:
    """A token as text; as OpenAI writes it when it is only a part of a character."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return logprob if logprob > _FLOOR else _FLOOR
