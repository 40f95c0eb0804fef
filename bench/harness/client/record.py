"""All that is known about one request after its end, whatever kind of end that was."""

from enum import StrEnum

import msgspec


class Failure(StrEnum):
    """All the ways in which a request can fail."""

    CONNECT = "connect"  # refused, unreachable, or no connection in time
    HTTP = "http"  # a status other than 200
    STALLED = "stalled"  # silence longer than the deadline for it
    TIMEOUT = "timeout"  # still going on at its total deadline
    DROPPED = "dropped"  # the connection ended within the response
    TRUNCATED = "truncated"  # the response ended in order, but without its end
    GARBAGE = "garbage"  # not HTTP, not server-sent events, not JSON, or no completion
    STREAM_ERROR = "error_in_stream"  # 200, and then an error event
    MISCOUNT = "miscount"  # another number of tokens than was asked for, or than usage says
    CANCELLED = "cancelled"  # by us: the run was interrupted


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The server's own count, in tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were cached; None if the server does not report them."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class Arrival(msgspec.Struct, frozen=True, array_like=True):
    """Generated text that arrived at one instant. ``num_ids``: tokens, 0 if the server sends no
    token ids."""

    at_s: float
    num_events: int
    num_chars: int
    num_ids: int


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times are ``perf_counter`` seconds of this process.

    ``due_at_s``: when it should have been sent. This is its scheduled arrival in an open loop, else
    the time of the call. Latencies count from then, so a client that falls behind cannot hide it.
    ``sent_at_s``: when its bytes were given to the socket; None if they never were.
    ``answer_id``: the ``id`` of the server's answer.
    """

    due_at_s: float
    sent_at_s: float | None
    first_byte_at_s: float | None
    done_at_s: float
    streamed: bool
    status: int | None = None
    retry_after: str | None = None
    answer_id: str = ""
    arrivals: tuple[Arrival, ...] = ()
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    failure: Failure | None = None
    detail: str = ""
    remarks: tuple[str, ...] = ()
    num_bytes: int = 0

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def e2e_s(self) -> float:
        return self.done_at_s - self.due_at_s

    @property
    def ttft_s(self) -> float | None:
        """Time to first token; None without streaming or without a token."""
        return self.arrivals[0].at_s - self.due_at_s if self.arrivals and self.streamed else None

    @property
    def itl_s(self) -> list[float]:
        """The gaps between arrivals. Text that arrives at one instant is one arrival, so several
        tokens in one event add no gaps of zero."""
        if not self.streamed:
            return []
        return [b.at_s - a.at_s for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]

    @property
    def said_tokens(self) -> int | None:
        """Generated tokens as the server reports them: by ``usage``, else by its ids, else None."""
        if self.usage is not None:
            return self.usage.completion_tokens
        return None if self.token_ids is None else len(self.token_ids)
