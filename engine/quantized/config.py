"""Reads fields of a ``quantization_config``; errors name the field, its value and the file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Config:
    """One JSON object; ``within`` is the path to it."""

    raw: Mapping[str, Any]
    folder: Path
    within: str = "quantization_config."

    def one_of(self, name: str, *supported: object, default: object = None) -> Any:
        """The value of a field, which must be one of ``supported``. An absent field is
        ``default``."""
        value = self.raw.get(name)
        value = default if value is None else value
        if not any(value == each and type(value) is type(each) for each in supported):
            raise self.refusal(name, value, supported)
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        value = self.raw.get(name)
        if not isinstance(value, dict):
            raise ValueError(f"{self.within}{name}: {value!r} {self._where} is not an object")
        return value

    def refusal(self, name: str, value: object, supported: tuple[object, ...]) -> ValueError:
        """The error for a field whose value is not supported."""
        *first, last = [repr(each) for each in supported]
        only = f"only {', '.join(first)} and {last} are" if first else f"only {last} is"
        return ValueError(f"{self.within}{name}: {value!r} {self._where}; {only} supported")

    @property
    def _where(self) -> str:
        return f"in {self.folder / 'config.json'}"
