"""Checks settings of services that ``baton up`` only passes on, before it starts any process."""

import logging
from collections.abc import Mapping


def check_service_settings(environ: Mapping[str, str]) -> None:
    """Raises ValueError naming the setting."""
    max_open = environ.get("BATON_MAX_OPEN", "").strip() or "1"
    if not (max_open.isascii() and max_open.isdigit() and int(max_open) > 0):
        raise ValueError(f"BATON_MAX_OPEN: {max_open!r} is not a whole number of at least 1")
    level = environ.get("BATON_LOG_LEVEL", "").strip() or "info"
    names = logging.getLevelNamesMapping()
    if level.upper() not in names:
        known = ", ".join(name.lower() for name in names)
        raise ValueError(f"BATON_LOG_LEVEL: {level!r} is none of {known}")
