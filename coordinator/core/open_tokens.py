"""The limit of the tokens that open responses hold.

All run on one event loop, without locks. A limit for open requests alone bounds no memory, because
a prompt may have one token or 200,000. So the tokens that responses hold are bounded. A token
counts as the four bytes of an id; a computed token that is still held as an object counts as the
ids that would take as much memory.
"""

import os
from pathlib import Path

from coordinator.core.contract import Overloaded, Token

TOKEN_BYTES = 4
_RETRY_AFTER_S = 2.0
_MEMORY_SHARE = 8  # the default is an eighth of the memory
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_OBJECT = 24  # Token, its id, its place in a queue: 96 bytes
_PAIR = 34  # an id and its log-probability, in tuples: 136 bytes


class OpenTokens:
    """Counts the tokens that the open responses hold, up to ``max_tokens``."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_held = 0

    def hold(self, num_prompt: int, *, until_end: bool) -> "Hold":
        """Count a response's prompt; raises Overloaded if that is too much now. With ``until_end``,
        computed tokens are held until the response is over, otherwise until they are read."""
        if self.num_held + num_prompt > self.max_tokens:
            raise Overloaded(
                f"open requests hold {self.num_held} tokens, and with {num_prompt} more it would "
                f"be over {self.max_tokens}, which is the most allowed",
                retry_after_s=_RETRY_AFTER_S,
            )
        return Hold(self, num_prompt, until_end=until_end)


class Hold:
    """Counts the tokens that a response holds, from its acceptance until ``release``."""

    def __init__(self, tokens: OpenTokens, num_prompt: int, *, until_end: bool) -> None:
        self._tokens = tokens
        self._until_end = until_end
        self._num_held = 0
        self._released = False
        self._take(num_prompt)

    def add(self, token: Token) -> None:
        """Count a computed token that waits to be read."""
        self._take(1 + _weight(token))

    def remove(self, token: Token) -> None:
        """Stop counting a token that was read, unless it is held until the end."""
        if not self._until_end:
            self._take(-_weight(token))

    def release(self) -> None:
        """Stop counting all tokens: the response is over. No-op the second time."""
        self._take(-self._num_held)
        self._released = True

    def _take(self, num_tokens: int) -> None:
        if not self._released:
            self._num_held += num_tokens
            self._tokens.num_held += num_tokens


def tokens_that_fit() -> int:
    """The number of tokens that take an eighth of the memory."""
    return memory_bytes() // _MEMORY_SHARE // TOKEN_BYTES


def memory_bytes() -> int:
    """The memory of this machine, or of its container if that is less."""
    num_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.is_file() else "max"
    if limit.isdecimal():
        num_bytes = min(num_bytes, int(limit))
    return num_bytes


def _weight(token: Token) -> int:
    if token.logprobs is None:
        return _OBJECT
    return _OBJECT + _PAIR * (1 + len(token.logprobs.top))
