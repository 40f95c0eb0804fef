"""Compiles grammars, in the same way at the coordinator, which checks them, and at every worker."""

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from transport.checkpoint_folder import TOKENIZER

LIMITS = LLParserLimits(
    max_grammar_size=200_000, max_lexer_states=50_000, initial_lexer_fuel=100_000
)
"""Limits of a grammar and of a step of its matcher: a step takes at most 50 ms, nearly always under
1 ms."""
_PLAIN = r'[^"<\\\x00-\x1F\x7F]'
SLICES = [_PLAIN + "{1,10}", _PLAIN + "{1,30}", _PLAIN + "+"]
"""Sets of tokens that a mask includes as a whole where the grammar allows all of them: texts in
JSON, and texts of a tool's parameters, which a ``<`` may end."""


def grammar_tokenizer(folder: Path, num_ids: int, eos_ids: Sequence[int]) -> LLTokenizer:
    """The tokenizer of a checkpoint's folder, with ids below ``num_ids``, for ``compiled``. Takes
    seconds for a vocabulary of 250,000."""
    text = (folder / TOKENIZER).read_text(encoding="utf-8")
    return LLTokenizer(text, n_vocab=num_ids, eos_token=list(eos_ids) or None, slices=SLICES)


def compiled(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the grammar's start. Its ``get_error`` says what is wrong with the grammar."""
    return LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
