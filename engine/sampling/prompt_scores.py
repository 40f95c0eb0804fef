"""Log-probabilities of a prompt's tokens, for the prompts whose requests ask for them.

    logprob[t + 1] = logits[t][id of t + 1] - logsumexp(logits[t])

Every token of such a prompt needs the logits of the token before it: 1 MB per token at 248,320 ids,
4 GB for a chunk of 4,096. So the logits of a few rows at a time are computed, and only the results
of each row are kept. A token's rank is one more than the number of more probable ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.batch import Row, Scoring
from engine.download import download
from engine.upload import upload
from transport.wire.layout import CHUNK_ALIGNMENT

SCRATCH_BYTES = 128 << 20
"""Memory of the logits of one block. Its temporaries take about twice as much; they are part of
``gpu.WORKING_BYTES``."""

Logits = Callable[[torch.Tensor], torch.Tensor]
"""A function from hidden states [rows, hidden] to float32 logits [rows, ids], valid ids first."""


def scored_block(device: str, prefill_block: int | None) -> int | None:
    """Tokens of a scored prompt per pass; None: any number. On the CPU the bits depend on that
    number, so it is fixed: a log-probability must not depend on the chunks of its prompt."""
    return prefill_block or (CHUNK_ALIGNMENT if device == "cpu" else None)


@dataclass(frozen=True)
class Scores:
    """Results of some scored prompts on their way to the host: int32 [tokens, words] each."""

    words: tuple[torch.Tensor, ...]
    copied: torch.cuda.Event | None

    def to_host(self) -> list[bytes | None]:
        """One entry per prompt, None if logits were not finite; waits for the device."""
        if self.copied is not None:
            self.copied.synchronize()
        return [_checked(words.numpy()) for words in self.words]


def score(hidden: torch.Tensor, rows: Sequence[Row], logits: Logits, num_ids: int) -> Scores:
    """Score the rows that have a ``scoring``. ``hidden`` [tokens, hidden]: normed states of all
    tokens of ``rows``, one row after another."""
    words, begin = [], 0
    for row in rows:
        if row.scoring is not None:
            first = begin + row.scoring.first
            states = hidden[first : first + len(row.scoring.next_ids)]
            words.append(_score_prompt(states, row.scoring, logits, num_ids))
        begin += row.length
    if hidden.device.type != "cuda":
        return Scores(tuple(words), None)
    pinned, copied = download(*words)
    return Scores(tuple(pinned), copied)


def by_row(scores: Sequence[tuple[Sequence[int], Scores]]) -> dict[int, bytes | None]:
    """The scores of each row of a batch, from the rows and scores of each pass; the scores of a row
    that took several passes are joined."""
    found: dict[int, bytes | None] = {}
    for indices, scored in scores:
        for index, words in zip(indices, scored.to_host(), strict=True):
            before = found.get(index, b"")
            found[index] = None if before is None or words is None else before + words
    return found


def _score_prompt(
    states: torch.Tensor, scoring: Scoring, logits: Logits, num_ids: int
) -> torch.Tensor:
    next_ids = upload(torch.from_numpy(np.array(scoring.next_ids, np.int64)), states.device)
    size = max(1, SCRATCH_BYTES // (num_ids * torch.float32.itemsize))
    blocks = zip(states.split(size), next_ids.split(size), strict=True)
    return torch.cat(
        [score_block(logits(some)[:, :num_ids], ids, scoring.num_top) for some, ids in blocks]
    )


def score_block(logits: torch.Tensor, next_ids: torch.Tensor, num_top: int) -> torch.Tensor:
    """Scores of ``next_ids`` (int64 [tokens]) from float32 logits [tokens, ids] at their positions
    -> int32 [tokens, 2 + 2 * num_top], floats as their bits."""
    total = logits.logsumexp(-1, keepdim=True)
    own = logits.gather(1, next_ids.unsqueeze(1))
    rank = (logits > own).sum(-1, keepdim=True) + 1
    best = logits.topk(num_top)
    parts = (
        (own - total).view(torch.int32),
        rank.int(),
        best.indices.int(),
        (best.values - total).view(torch.int32),
    )
    return torch.cat(parts, 1)


def _checked(words: np.ndarray) -> bytes | None:
    finite = np.isfinite(words[:, 0].view(np.float32)).all()
    return words.astype("<i4", copy=False).tobytes() if finite else None
