"""A node whose speeds do not change."""


class FixedSpeeds:
    """Steps take 10 ms and 0.1 ms more for each sequence; answers take 2 s."""

    def __init__(self, tok_s: float = 10_000.0, *, faster: float = 1.0) -> None:
        self._tok_s, self._faster = tok_s, faster

    def prefill_tok_s(self) -> float:
        return self._tok_s

    def new_tokens(self, num_tokens: int) -> int:
        return num_tokens

    def step_s(self, num_sequences: int) -> float:
        return (0.01 + num_sequences / 10_000) / self._faster

    def answer_s(self) -> float:
        return 2.0 / self._faster
