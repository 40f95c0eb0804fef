"""Log-probabilities of sampled tokens, for the rows whose requests ask for them.

They are the log_softmax of the raw logits: neither settings nor grammars change them.
prompt_scores.py computes those of a prompt's tokens.
"""

from collections.abc import Sequence

import torch

from engine.step import Draw
from engine.upload import upload
from transport.wire.sampling import SamplingParams


def draw_with_logprobs(
    logits: torch.Tensor,
    ids: torch.Tensor,
    checked_ids: torch.Tensor,
    settings: Sequence[SamplingParams],
) -> Draw:
    """The Draw of ``checked_ids`` int64 [rows], -1 where logits were not finite, with the
    log-probabilities that ``settings``, one per row, ask for: of ``ids`` (the same, but never
    negative) and of the best ids. logits float32 [rows, ids]."""
    wanted = tuple(
        (row, params.logprobs) for row, params in enumerate(settings) if params.logprobs is not None
    )
    if not wanted:
        return Draw(checked_ids)
    index = upload(torch.tensor([row for row, _ in wanted]), logits.device)
    logprobs = logits.index_select(0, index).log_softmax(-1)
    chosen = logprobs.gather(1, ids.index_select(0, index).unsqueeze(1)).squeeze(1)
    best = logprobs.topk(min(max(k for _, k in wanted), logits.shape[1]))
    return Draw(checked_ids, wanted, (chosen, best.values, best.indices))
