"""Finds the boundaries of a chat's prompt: places where later prompts are likely to differ.

Chat templates begin each turn with a token and a role (turns.py), so the turns are found in the
token ids, and the prompt is not rendered again. A later prompt may differ from this one

- behind the system prompt and the tools: a new conversation;
- before the last question: the same conversation, asked otherwise;
- behind the beginning of the first answer after the last question, in ChatML
  ``<|im_start|>assistant`` and a line break: the conversation after its next question, where the
  template renders this answer (and the tool loop that follows it) without the think block with
  which it begins now;
- behind the same of the last answer: the next step of a tool loop, as far as this prompt's end.

Tool results may come in user turns too, but are no questions: the answers before and after them
keep their think blocks.
"""

import re

import tokenizers

from coordinator.text.turns import CHATML, Turns
from transport.wire.token_ids import ID_BYTES, TokenIds, packed, to_wire


class Boundaries:
    """Finds boundaries in prompts; none with a tokenizer that lacks the token of ``turns``."""

    def __init__(self, backend: tokenizers.Tokenizer, turns: Turns = CHATML) -> None:
        def pattern(text: str) -> bytes:
            ids = backend.encode(text, add_special_tokens=False).ids
            return re.escape(to_wire(packed(ids)))

        self._turns: re.Pattern[bytes] | None = None
        if backend.token_to_id(turns.start) is not None:
            kinds = (
                b"(?P<%b>%b)" % (kind.encode(), pattern(text)) for kind, text in turns.kinds.items()
            )
            # NOTE: a pattern that begins with fixed bytes is searched for 40 times faster.
            self._turns = re.compile(b"%b(?:%b)" % (pattern(turns.start), b"|".join(kinds)))

    def of(self, prompt: TokenIds) -> tuple[int, ...]:
        """The boundaries of ``prompt`` as numbers of tokens, ascending: up to four, above 0 and
        below the length of the prompt."""
        if self._turns is None:
            return ()
        turns = [
            (turn.lastgroup, turn.start() // ID_BYTES, turn.end() // ID_BYTES)
            for turn in self._turns.finditer(to_wire(prompt))
            if turn.start() % ID_BYTES == 0
        ]
        first = [start for _, start, _ in turns[:1]]
        question = [start for kind, start, _ in turns if kind == "question"][-1:]
        answers = [end for kind, _, end in turns if kind == "answer"]
        next_answer = [end for end in answers if question and end > question[0]][:1]
        found = {*first, *question, *next_answer, *answers[-1:]}
        return tuple(sorted(num for num in found if 0 < num < len(prompt)))
