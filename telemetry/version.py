"""The name and the version of Baton's distribution, and how its extras are installed;
pyproject.toml takes the version from here."""

DISTRIBUTION = "baton-serve"
"""The name on PyPI, where ``baton`` is another project."""

VERSION = "0.1.0"


def install_command(extra: str) -> str:
    """The command that installs an extra of Baton, ending with where to run it. It takes the
    extra from a clone: the distribution is on no package index yet."""
    return f"pip install -e '.[{extra}]' in a clone of Baton (docs/packages.md)"
