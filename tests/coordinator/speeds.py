"""A node whose speeds do not change."""


class FixedSpeeds:
    """Steps take 10 ms and ``each_s`` more for each sequence; answers take 2 s."""

    def __init__(
        self,
        tok_s: float = 10_000.0,
        *,
        faster: float = 1.0,
        each_s: float = 0.000_1,
        prompt_len: float = 1_000.0,
    ) -> None:
        self._tok_s, self._faster, self._each_s = tok_s, faster, each_s
        self._prompt_len = prompt_len

    def prefill_tok_s(self) -> float:
        return self._tok_s

    def new_tokens(self, num_tokens: int) -> int:
        return num_tokens

    def step_s(self, num_sequences: int) -> float:
        return (0.01 + num_sequences * self._each_s) / self._faster

    def answer_s(self) -> float:
        return 2.0 / self._faster

    def answer_len(self) -> float:
        return 200.0

    def prompt_len(self) -> float:
        return self._prompt_len
