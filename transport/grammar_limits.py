"""The limits of grammars, the same at the coordinator and at every worker."""

from llguidance import LLParserLimits

LIMITS = LLParserLimits(
    max_grammar_size=200_000, max_lexer_states=50_000, initial_lexer_fuel=100_000
)
"""Of a grammar, and of a step of its matcher: at most 50 ms, and nearly always under 1."""
