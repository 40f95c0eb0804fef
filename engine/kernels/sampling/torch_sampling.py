"""Logit adjustments and filters of sampling, row by row, in plain PyTorch.

Every function treats each row alone, with arithmetic that does not depend on the other rows.
"""

import torch

SHORT_TOP_K = 64
"""Rows whose top_k is at most this need only their best SHORT_TOP_K logits in order."""


def penalised(
    logits: torch.Tensor,
    in_prompt: torch.Tensor,
    counts: torch.Tensor,
    repetition: torch.Tensor,
    presence: torch.Tensor,
    frequency: torch.Tensor,
) -> torch.Tensor:
    """Apply repetition penalty over prompt and output, then presence and frequency over the output.

    logits, in_prompt (bool) and counts (of the output, int) are [rows, ids], the penalties
    [rows]. A repeated id's logit is divided by ``repetition`` if positive, else multiplied
    (CTRL, arXiv:1909.05858; as in transformers and vLLM).
    """
    repetition = repetition.unsqueeze(1)
    in_output = counts > 0
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    logits = torch.where(in_prompt | in_output, repeated, logits)
    logits = logits - presence.unsqueeze(1) * in_output
    return logits - frequency.unsqueeze(1) * counts


def masked(logits: torch.Tensor, rows: tuple[int, ...], bits: torch.Tensor) -> torch.Tensor:
    """``logits`` [rows, ids] with -inf in ``rows`` where bit i % 32 of word i // 32 is 0.

    bits int32 [len(rows), words of at least all ids].
    """
    shifts = torch.arange(32, dtype=torch.int32, device=bits.device)
    allowed = (bits.unsqueeze(2) >> shifts & 1).flatten(1)[:, : logits.shape[1]].bool()
    index = torch.tensor(rows, device=logits.device)
    kept = logits.index_select(0, index).masked_fill(~allowed, float("-inf"))
    return logits.index_copy(0, index, kept)


def threshold(
    logits: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    *,
    short: bool,
) -> torch.Tensor:
    """The lowest logit that min_p, then top_k, then top_p keep: float32 [rows].

    Values equal to it are all kept, so ties do not depend on a sort's order. min_p is relative to
    the best id; top_p takes the best of the k best ids that min_p keeps, until their share of
    those reaches it. ``short`` promises 0 < top_k <= SHORT_TOP_K for every row and spares the full
    sort.
    """
    num_ids = logits.shape[1]
    best = (
        logits.topk(min(SHORT_TOP_K, num_ids)).values
        if short
        else logits.sort(descending=True).values
    )
    k = torch.where(top_k > 0, top_k, num_ids).clamp(max=num_ids).unsqueeze(1)
    rank = torch.arange(best.shape[1], device=logits.device)
    likely = best[:, :1] + min_p.unsqueeze(1).log()
    share = best.masked_fill((rank >= k) | (best < likely), float("-inf")).softmax(-1)
    before = share.cumsum(-1) - share
    p = top_p.unsqueeze(1)
    num_kept = torch.where(p < 1.0, (before < p).sum(-1, keepdim=True), k).clamp(min=1)
    lowest = best.gather(1, torch.minimum(num_kept, k) - 1)
    return torch.maximum(lowest, likely).squeeze(1)
