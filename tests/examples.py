"""How many random examples a test tries: all of them by `make test-all`, a third by `make test`.

For tests whose examples take a tenth of a second and more, such as simulated clusters.
"""

import os


def examples(number: int) -> int:
    """``number`` for ``make test-all``, a third of it otherwise, and at least four."""
    return number if os.environ.get("BATON_TEST_ALL") else max(4, number // 3)
