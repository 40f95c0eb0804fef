"""How chat templates begin the turns of a conversation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turns:
    """The beginnings of turns. ``start``: the token with which each begins; "" if none is known.
    Behind it: ``answer`` before the text of an answer, ``question`` in a user's turn, and
    ``result`` in the turn of a tool's result ("" if that has no beginning of its own)."""

    name: str
    start: str = ""
    answer: str = ""
    question: str = ""
    result: str = ""

    @property
    def kinds(self) -> dict[str, str]:
        """The text behind ``start`` by the kind of turn; a result comes before a question, which
        may begin alike."""
        kinds = {"answer": self.answer, "result": self.result, "question": self.question}
        return {kind: text for kind, text in kinds.items() if text}


CHATML = Turns("chatml", "<|im_start|>", "assistant\n", "user", "user\n<tool_response>")
LLAMA3 = Turns(
    "llama3", "<|start_header_id|>", "assistant<|end_header_id|>\n\n", "user<|end_header_id|>",
    "ipython<|end_header_id|>",
)  # fmt: skip
GEMMA = Turns("gemma", "<start_of_turn>", "model\n", "user\n")
UNKNOWN = Turns("unknown")
"""Prompts with such turns have no boundaries, and their ids are not cached by turns."""
TURNS = (CHATML, LLAMA3, GEMMA)
