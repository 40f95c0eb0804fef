"""Prints the dependencies of pyproject.toml, one per line: an image installs them as one layer.

python3 requirements.py [EXTRA ...] > requirements.txt
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The dependencies, with those of ``extras``. Raises KeyError for an unknown extra."""
    project = tomllib.loads(pyproject)["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(), sys.argv[1:])))
