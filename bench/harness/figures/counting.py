"""Counts the tokens of an answer: by its text and its ids, never by ``usage`` alone.

- If the server gives ids and they decode to the text that it sent, their number is the count.
- Else the text is tokenized again. Text that was not generated along its own tokenization (random
  weights, broken characters) gives more tokens, so the count is limited to the server's claim and
  to the requested number.
- The request is a miscount if the claim is above or far below the tokens of the text, if there are
  not as many ids as claimed, or if an exact length was requested and missed.
"""

from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from bench.harness.client.record import Failure, Record
from bench.harness.workload.tokens import TokenizerMissing, Tokens

# By how much a text may have fewer tokens than claimed: held-back pieces, merges across tokens.
CLAIM_SHARE, CLAIM_TOKENS = 0.10, 2
# By how much it may have more: every broken character becomes several tokens.
EXCESS_FACTOR, EXCESS_TOKENS = 1.6, 8


@dataclass(frozen=True)
class Count:
    """Generated tokens of one answer. ``said``: by usage (None: no usage). ``retokenized``: of the
    text. ``ids``: number of ids given (None: none). ``verified``: the count used, found ``by``
    ids or text."""

    said: int | None
    retokenized: int
    ids: int | None
    verified: int
    by: Literal["ids", "text"]
    wrong: str = ""


async def count(
    record: Record,
    tokens: Tokens,
    *,
    asked: int | None,
    exact: bool,
    tolerance: float = CLAIM_SHARE,
) -> Count:
    """Count an answer. Never raises; ``wrong`` says which numbers contradict each other."""
    text = record.reasoning + record.text
    said = None if record.usage is None else record.usage.completion_tokens
    ids = None if record.token_ids is None else len(record.token_ids)
    try:
        retokenized = len(await tokens.encode(text)) if text else 0
        decoded = await tokens.decode(record.token_ids) if record.token_ids else None
    except TokenizerMissing as error:  # the server's own, and it is gone
        return Count(said, 0, ids, 0, "text", f"could not be counted: {error}")
    if record.token_ids and decoded is not None and _as_sent(decoded) == _as_sent(text):
        found = Count(said, retokenized, ids, len(record.token_ids), "ids")
    else:
        ceiling = [n for n in (said, asked) if n is not None]
        found = Count(said, retokenized, ids, min([retokenized, *ceiling]), "text")
    return replace(found, wrong=_wrong(found, asked, exact, tolerance))


def judged(record: Record, found: Count) -> Record:
    """The record, as a miscount if it is one and did not fail otherwise."""
    if record.failure is not None or not found.wrong:
        return record
    return msgspec.structs.replace(record, failure=Failure.MISCOUNT, detail=found.wrong)


def _wrong(found: Count, asked: int | None, exact: bool, tolerance: float) -> str:
    said, claim = found.said, found.said if found.said is not None else found.ids
    if said is not None and found.ids is not None and said != found.ids:
        return f"usage says {said} tokens, but {found.ids} token ids came"
    if claim is not None and found.by == "text":
        if claim - found.retokenized > max(CLAIM_TOKENS, tolerance * claim):
            return f"the server says {claim} tokens, but its text has {found.retokenized}"
        if found.retokenized > EXCESS_FACTOR * claim + EXCESS_TOKENS:
            return f"the server says {claim} tokens, but its text has {found.retokenized}"
    if asked is None:
        return ""
    if claim is None:  # the text alone tells, and not to the token
        short = asked - found.retokenized > max(CLAIM_TOKENS, tolerance * asked)
        return f"{asked} tokens were asked for, the text has {found.retokenized}" * (
            exact and short
        )
    if claim > asked:
        return f"at most {asked} tokens were asked for, {claim} came"
    if exact and claim != asked:
        return f"exactly {asked} tokens were asked for (ignore_eos), {claim} came"
    return ""


def _as_sent(text: str) -> str:
    """The text without a broken character at its end, which only some servers send."""
    return text.rstrip("�").strip()
