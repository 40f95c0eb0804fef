"""Philox4x32-10, the counter-based generator behind sampling.

    ten times:  c <- (hi(M1 c2) ^ c1 ^ k0, lo(M1 c2), hi(M0 c0) ^ c3 ^ k1, lo(M0 c0));  k <- k + W

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11); Random123's
known-answer vectors are in the tests. Words are 32-bit values held in int64.
"""

import torch

M0, M1 = 0xD2511F53, 0xCD9E8D57
W0, W1 = 0x9E3779B9, 0xBB67AE85
MASK = 0xFFFFFFFF
NOISE_STREAM, ACCEPTANCE_STREAM = 0x42544E31, 0x42544E32
"""Last counter words of sampling noise and of a given draft acceptance, so that the uses of a
request's seed never collide."""

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four random words for each counter; counter and key words broadcast, int64 in [0, 2^32)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # NOTE: the product wraps in int64, but has the same bits as the unsigned product.
        first, second = c0 * M0, c2 * M1
        c0 = ((second >> 32) & MASK) ^ c1 ^ k0
        c1 = second & MASK
        c2 = ((first >> 32) & MASK) ^ c3 ^ k1
        c3 = first & MASK
        k0, k1 = (k0 + W0) & MASK, (k1 + W1) & MASK
    return c0, c1, c2, c3


def words_at(
    blocks: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor, stream: int
) -> Words:
    """The random words of counter (block, position low, position high, ``stream``) and key
    ``seeds``; all int64, and broadcast."""
    low, high = positions & MASK, (positions >> 32) & MASK
    counter = blocks, low, high, torch.full_like(low, stream)
    return philox(counter, (seeds & MASK, (seeds >> 32) & MASK))


def to_uniform(words: torch.Tensor) -> torch.Tensor:
    """Numbers in (0, 1), float32 in the shape of ``words``: (word >> 9 + 1/2) 2^-23.

    NOTE: 23 bits, because with 24 the half does not fit float32 and the largest one rounds to 1,
    whose Gumbel noise is infinite: some id of a large vocabulary would win against any logits.
    """
    return ((words >> 9).to(torch.float32) + 0.5) * 2.0**-23


def gumbel_noise(seeds: torch.Tensor, positions: torch.Tensor, num_ids: int) -> torch.Tensor:
    """Gumbel(0, 1) noise for each row and token id, float32 [rows, num_ids].

    ``seeds`` int64 [rows] (the 64 bits of a request's seed), ``positions`` int64 [rows] (the index
    that the sampled token will have in its sequence). The noise of an id depends on seed,
    position and id alone: counter (id // 4, position low, position high, NOISE_STREAM), word
    id % 4, u = ``to_uniform`` of it, noise = -log(-log(u)).
    """
    blocks = torch.arange((num_ids + 3) // 4, device=seeds.device).unsqueeze(0)
    words = words_at(blocks, seeds.unsqueeze(1), positions.unsqueeze(1), NOISE_STREAM)
    word = torch.stack(words, -1).flatten(1)[:, :num_ids]
    return to_uniform(word).log_().neg_().log_().neg_()
