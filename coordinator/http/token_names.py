"""How log-probabilities name a token, and how JSON has them."""

from collections.abc import Mapping

_FLOOR = -9999.0  # JSON has no -inf; vLLM writes this


def token_name(token_id: int, token_bytes: Mapping[int, bytes], *, by_id: bool) -> str:
    """Its text; as OpenAI writes it when it is only a part of a character. ``by_id``: as vLLM
    writes it for ``return_tokens_as_token_ids``."""
    if by_id:
        return name_by_id(token_id)
    raw = token_bytes[token_id]
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def name_by_id(token_id: int) -> str:
    return f"token_id:{token_id}"


def finite(logprob: float) -> float:
    return logprob if logprob > _FLOOR else _FLOOR
