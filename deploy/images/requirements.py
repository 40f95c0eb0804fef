"""What pyproject.toml depends on, a line each: an image installs it as a layer of its own.

python3 requirements.py [EXTRA ...] > requirements.txt
"""

import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, extras: list[str]) -> list[str]:
    """The dependencies, and those of ``extras``; raises KeyError for an extra that is none."""
    project = tomllib.loads(pyproject)["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(Path("pyproject.toml").read_text(), sys.argv[1:])))
