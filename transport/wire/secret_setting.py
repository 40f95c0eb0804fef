"""Settings that are secrets: given by the environment or by a file, never by a command line, which
every user of a machine can read.

For a setting ``NAME`` the environment holds either the secret itself, or in ``NAME_FILE`` the path
of a file with it, as container engines mount them.
"""

import os
from collections.abc import Mapping
from pathlib import Path


def secret_setting(environ: Mapping[str, str], name: str) -> str:
    """The secret ``name``, "" where it is not set (or set to nothing).

    Raises ValueError that names the setting, never showing the secret: given twice, not UTF-8, or a
    file that cannot be read or holds nothing.
    """
    given, path = environ.get(name, "").rstrip(), environ.get(f"{name}_FILE", "")
    if not given.isascii() and any("\ud800" <= character <= "\udfff" for character in given):
        raise ValueError(f"{name}: is not UTF-8 text")
    if not path:
        return given
    if given:
        raise ValueError(f"{name} and {name}_FILE are both set; say one")
    # Where no file has this name, the name may be the secret itself, and is not shown.
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
