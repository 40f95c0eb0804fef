"""Text that may be the beginning of a tag, and so has to wait for what follows. Pure."""


def may_begin(text: str, *tags: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of one of ``tags``.

    >>> may_begin("so <too", "<tool_call>"), may_begin("so <b", "<tool_call>")
    (4, 0)
    """
    longest = min(len(text), max(map(len, tags)) - 1)
    for length in range(longest, 0, -1):
        if any(tag.startswith(text[-length:]) for tag in tags):
            return length
    return 0
