"""Work bounded by the processor time it takes, which other processes do not lengthen."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def little_work(at_most_s: float = 1.0) -> Iterator[None]:
    """Without the collector, which would go through all that other tests have left."""
    gc.disable()
    try:
        started = time.process_time()
        yield
        assert time.process_time() - started < at_most_s
    finally:
        gc.enable()
