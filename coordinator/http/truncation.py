"""Prompts that a request lets the server cut to a length."""

from typing import TypeVar

from coordinator.http.prompts import LOOKUP_LENS, check_lookup
from coordinator.http.request_schemas import GenerationRequest
from transport.wire.token_ids import TokenIds

_Ids = TypeVar("_Ids", TokenIds, list[int])


def max_read_len(request: GenerationRequest, max_len: int) -> int:
    """How many tokens of a prompt are of interest: what is cut away may be beyond ``max_len``."""
    return max_len if request.truncate_prompt_tokens is None else LOOKUP_LENS * max_len


def truncated(prompt: _Ids, request: GenerationRequest, max_len: int) -> _Ids:
    """The last ``truncate_prompt_tokens`` tokens, or with ``truncation_side`` "right" the first; -1
    stands for as many as leave room for the output within ``max_len``. Raises ApiError for a prompt
    of which not all may have been read."""
    length = request.truncate_prompt_tokens
    if length is None:
        return prompt
    check_lookup(request.prompt_param, len(prompt), max_len)
    if length == -1:
        length = max(1, max_len - (request.num_output_asked or 1))
    if len(prompt) <= length:
        return prompt
    return prompt[:length] if request.truncation_side == "right" else prompt[len(prompt) - length :]
