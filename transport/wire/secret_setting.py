"""Reads settings that are secrets from the environment or from a file.

They are never read from a command line, which every user of a machine can read.

For a setting ``NAME`` the environment holds either the secret itself, or in ``NAME_FILE`` the path
of a file with it, as container engines mount them.
"""

import os
from collections.abc import Mapping
from pathlib import Path

CHANNEL_SECRET = "BATON_CHANNEL_SECRET"
"""The secret that the coordinator and its workers share (channel_keys.py)."""


def secret_setting(environ: Mapping[str, str], name: str) -> str:
    """The secret ``name``; "" where it is not set or empty.

    Raises ValueError, which names the setting and shows no part of the secret: it is set twice, is
    not UTF-8, or its file cannot be read or is empty.
    """
    given, path = environ.get(name, "").rstrip(), environ.get(f"{name}_FILE", "")
    if not given.isascii() and any("\ud800" <= character <= "\udfff" for character in given):
        raise ValueError(f"{name}: is not UTF-8 text")
    if not path:
        return given
    if given:
        raise ValueError(f"{name} and {name}_FILE are both set; set one of them")
    # If no such file exists, the path may be the secret itself by mistake: don't show it.
    shown = path if os.path.lexists(path) else "the file that it names"
    try:
        found = Path(path).read_text(encoding="utf-8").rstrip()
    except OSError as error:
        raise ValueError(f"{name}_FILE: cannot read {shown}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{name}_FILE: {shown} is not UTF-8 text") from None
    if not found:
        raise ValueError(f"{name}_FILE: {shown} is empty")
    return found
