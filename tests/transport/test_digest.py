"""The digest of a handoff sees every byte a sequence owns, and where it lies."""

import pytest
import torch

from transport.copy import digest as module
from transport.copy.digest import digest
from transport.copy.region import Region
from transport.copy.tensors import CacheTensors
from transport.wire.layout import CacheLayout, PoolSize

LAYOUT = CacheLayout("bfloat16", 16, 2, 2, 8, 3, 24, 3, 4, 8, 16, num_window_layers=1, window=20)
SIZE = PoolSize(num_pages=8, num_state_slots=4)
PAGES, SLOT, TOKENS = (6, 1, 3), 2, 40


@pytest.fixture
def cache() -> CacheTensors:
    size_bytes = Region.of(LAYOUT, SIZE).size_bytes
    draw = torch.Generator().manual_seed(0)
    buffer = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, generator=draw)
    return CacheTensors.over(buffer, LAYOUT, SIZE)


def flip(tensor: torch.Tensor, index: int) -> None:
    tensor.view(-1).view(torch.uint8)[index] ^= 0x40


def test_every_byte_counts(cache: CacheTensors) -> None:
    seen = {digest(cache, PAGES, SLOT, TOKENS)}
    owned = [cache.kv[page] for page in PAGES[:2]] + [cache.conv[SLOT], cache.recurrent[SLOT]]
    owned.append(cache.windows_of(SLOT, TOKENS))
    for block in owned:
        for index in range(0, block.nbytes, 37):
            flip(block, index)
            seen.add(digest(cache, PAGES, SLOT, TOKENS))
            flip(block, index)
    assert len(seen) == 1 + sum(len(range(0, block.nbytes, 37)) for block in owned)


def test_the_order_counts(cache: CacheTensors) -> None:
    before = digest(cache, PAGES, SLOT, TOKENS)
    assert digest(cache, (1, 6, 3), SLOT, TOKENS) != before
    words = cache.recurrent[SLOT].view(-1)
    words[:2] = words[:2].flip(0)
    assert digest(cache, PAGES, SLOT, TOKENS) != before


def test_a_sequence_without_its_last_page_is_another(cache: CacheTensors) -> None:
    lengths = [digest(cache, PAGES[: LAYOUT.pages_for(n)], SLOT, n) for n in (1, 16, 17, 32, 40)]
    assert len(set(lengths)) == len(lengths)


def test_pieces_do_not_matter(cache: CacheTensors, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = digest(cache, PAGES, SLOT, TOKENS)
    monkeypatch.setattr(module, "WORDS_AT_ONCE", 5)
    assert digest(cache, PAGES, SLOT, TOKENS) == whole


def test_a_model_without_states_has_a_digest_of_its_pages_alone() -> None:
    layout = CacheLayout("bfloat16", 16, 2, 2, 8, 0, 0, 0, 0, 0, 0)
    buffer = torch.zeros(Region.of(layout, SIZE).size_bytes, dtype=torch.uint8)
    cache = CacheTensors.over(buffer, layout, SIZE)
    before = digest(cache, PAGES, SLOT, TOKENS)
    assert digest(cache, PAGES, 0, TOKENS) == before
    flip(cache.kv[PAGES[0]], 0)
    assert digest(cache, PAGES, SLOT, TOKENS) != before
