"""What a pool can never hold, even alone. Pure."""

from transport.wire.layout import CacheLayout, PoolSize


def too_long(num_tokens: int, layout: CacheLayout, size: PoolSize) -> str:
    """Why no sequence of so many cached tokens can ever be in a pool; "" if one can."""
    if layout.pages_for(num_tokens) <= size.num_pages:
        return ""
    return f"{num_tokens} tokens do not fit into {size.num_pages} pages of {layout.page_size}"
