"""Whether a sequence can never fit a worker's cache, even alone. Pure."""

from transport.wire.layout import CacheLayout, PoolSize


def too_long(num_tokens: int, layout: CacheLayout, size: PoolSize) -> str:
    """Why a sequence of so many cached tokens can never fit the cache; "" if it can."""
    if layout.pages_for(num_tokens) <= size.num_pages:
        return ""
    return f"{num_tokens} tokens do not fit into {size.num_pages} pages of {layout.page_size}"
