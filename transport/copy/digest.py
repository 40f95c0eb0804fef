"""A hash of a sequence's pages and state, equal at both ends of a correct handoff.

Each 64-bit word is mixed with its position, and the results are added modulo 2^64, with two
different mixers. It runs on the device of the cache at the speed of its memory. It is for finding
mistakes, not attackers: a byte that changed, moved or is missing goes unnoticed once in 2^128.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from transport.copy.tensors import CacheTensors

MIXERS = ((0x1E3779B97F4A7C15, 0x3F58476D1CE4E5B9), (0x2545F4914F6CDD1D, 0x14D049BB133111EB))
"""(for positions, for words). Odd, so that a multiplication modulo 2^64 can be undone."""
WORDS_AT_ONCE = 1 << 21
"""Bounds the temporaries to a few times 16 MiB."""


def digest(cache: CacheTensors, pages: tuple[int, ...], state_slot: int, num_tokens: int) -> str:
    """The digest, 32 hex digits, of a sequence of ``num_tokens`` tokens in ``pages`` and
    ``state_slot``. Positions of the last page behind the sequence are left out, and window pages
    that it has not reached."""
    sums = torch.zeros(len(MIXERS), dtype=torch.int64, device=cache.kv.device)
    offset = 0
    for block in _blocks(cache, pages, state_slot, num_tokens):
        for words in _words(block).split(WORDS_AT_ONCE):
            at = torch.arange(offset, offset + len(words), device=words.device)
            for i, (of_position, of_word) in enumerate(MIXERS):
                key = (2 * at + 1) * of_position
                sums[i] += (_folded((words ^ key) * of_word) * key).sum()
            offset += len(words)
    return "".join(f"{value & (1 << 64) - 1:016x}" for value in sums.tolist())


def _blocks(
    cache: CacheTensors, pages: tuple[int, ...], state_slot: int, num_tokens: int
) -> Iterator[Tensor]:
    page_size = cache.kv.shape[3]
    num_full, left_over = divmod(num_tokens, page_size)
    at_once = max(1, WORDS_AT_ONCE * 8 // cache.kv[0].nbytes)
    for first in range(0, num_full, at_once):
        yield cache.kv[list(pages[first : min(first + at_once, num_full)])]
    if left_over:
        yield cache.kv[pages[num_full]][:, :, :left_over]
    for states in (cache.conv, cache.recurrent):
        if states[state_slot].numel():  # a model without states has none
            yield states[state_slot]
    windows = cache.windows_of(state_slot, num_tokens)
    if windows.numel():
        yield windows


def _words(block: Tensor) -> Tensor:
    data = block.contiguous().view(-1).view(torch.uint8)
    return data.view(torch.int64) if len(data) % 8 == 0 else data.long()


def _folded(words: Tensor) -> Tensor:
    """Each word with its upper half XORed onto its lower half, since a multiplication moves bits up
    only."""
    return words ^ ((words >> 32) & 0xFFFFFFFF)
