"""The name and the version of Baton's distribution; pyproject.toml takes the version from here."""

DISTRIBUTION = "baton-serve"
"""The name on PyPI, where ``baton`` is another project."""

VERSION = "0.1.0"
