"""Prints the dependencies of pyproject.toml, one per line, in the versions of constraints.txt: an
image installs them as one layer.

python3 requirements.py [EXTRA ...] > requirements.txt
"""

import re
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: str, constraints: str, extras: list[str]) -> list[str]:
    """The dependencies, with those of ``extras``. Raises KeyError for an unknown extra, and for a
    dependency without a version in ``constraints``."""
    project = tomllib.loads(pyproject)["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    versions = dict(re.findall(r"^([\w-]+)==(.+)$", constraints, re.MULTILINE))
    names = [re.match(r"([\w-]+)(\[[\w,-]+\])?", each) for each in found]
    return [f"{name[0]}=={versions[name[1]]}" for name in names if name]


if __name__ == "__main__":
    ranges, versions = Path("pyproject.toml"), Path("deploy/constraints.txt")
    print("\n".join(requirements(ranges.read_text(), versions.read_text(), sys.argv[1:])))
