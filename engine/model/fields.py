"""Reads a checkpoint's ``config.json``; errors name the field and the file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.layers import LinearScaling, Llama3Scaling, Rope, Scaling


@dataclass(frozen=True)
class Fields:
    """A JSON object whose reads fail with the setting's name and file."""

    values: dict[str, Any]
    folder: Path
    within: str = ""

    def get(self, name: str, default: Any) -> Any:
        value = self.values.get(name)
        return default if value is None else value

    def _need(self, name: str) -> Any:
        value = self.values.get(name)
        if value is None:
            raise ValueError(f"{self.within}{name}: missing in {self.folder / 'config.json'}")
        return value

    def positive(self, name: str, default: int | None = None) -> int:
        value = self._need(name) if default is None else self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{self.within}{name}: {value!r} is not a positive integer")
        return value

    def count(self, name: str, default: int = 0) -> int:
        """A non-negative integer; ``default`` if it is absent."""
        value = self.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{self.within}{name}: {value!r} is not a count")
        return value

    def number(self, name: str) -> float:
        value = self._need(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            raise ValueError(f"{self.within}{name}: {value!r} is not a positive number")
        return float(value)

    def mapping(self, name: str) -> dict[str, Any]:
        value = self._need(name)
        if not isinstance(value, dict):
            raise ValueError(f"{self.within}{name}: {value!r} is not an object")
        return value

    def must_be(self, name: str, only: object) -> None:
        """Check a field for the only value that this engine supports; absent means that value."""
        value = self.get(name, only)
        if value != only:
            raise ValueError(f"{self.within}{name}: {value!r}; only {only!r} is supported")

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise ValueError(f"{self.within}{name}: {value!r} is neither true nor false")
        return value

    def layer_types(self, *known: str) -> tuple[str, ...] | None:
        """The listed type of each layer, one of ``known``; None if none are listed."""
        listed, num_layers = self.values.get("layer_types"), self.positive("num_hidden_layers")
        if listed is None:
            return None
        unknown = set(listed) - set(known)
        if unknown or len(listed) != num_layers:
            raise ValueError(
                f"layer_types: {len(listed)} entries for {num_layers} layers, "
                f"of unknown type: {sorted(unknown) or 'none'}"
            )
        return tuple(listed)

    def rope(self, head_dim: int, **defaults: float) -> Rope:
        """The rotary positions, from ``rope_parameters`` or, as in older checkpoints, from
        ``rope_theta`` and ``rope_scaling``; ``defaults`` of fields that may be absent."""
        name = "rope_parameters"
        if self.values.get(name) is not None or self.values.get("rope_theta") is None:
            values = self.mapping(name)
        else:
            name, own = "rope_scaling", self.get("rope_scaling", {})
            if not isinstance(own, dict):
                raise ValueError(f"{self.within}rope_scaling: {own!r} is not an object")
            values = {"rope_theta": self.values["rope_theta"], **own}
        if (factor := self.get("partial_rotary_factor", None)) is not None:
            defaults["partial_rotary_factor"] = factor
        rope = Fields({**defaults, **values}, self.folder, within=f"{name}.")
        scaling = rope.scaling()
        rotary_dim = int(head_dim * rope.number("partial_rotary_factor"))
        if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
            raise ValueError(
                f"{name}.partial_rotary_factor: rotates {rotary_dim} of {head_dim} dims"
            )
        return Rope(rope.number("rope_theta"), rotary_dim, scaling)

    def scaling(self) -> Scaling | None:
        kind = self.get("rope_type", self.get("type", "default"))
        if kind == "default":
            return None
        if kind == "linear":
            return LinearScaling(self.number("factor"))
        if kind != "llama3":
            raise ValueError(
                f"{self.within}rope_type: {kind!r}; only 'default', 'linear' and 'llama3' are "
                "supported"
            )
        return Llama3Scaling(
            factor=self.number("factor"),
            low_freq_factor=self.number("low_freq_factor"),
            high_freq_factor=self.number("high_freq_factor"),
            original_max_position_embeddings=self.positive("original_max_position_embeddings"),
        )


def read_json(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        what = "no config.json in it" if folder.is_dir() else "no such folder"
        raise ValueError(f"model_dir: {folder}: {what}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"model_dir: {path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"model_dir: {path} holds a {type(value).__name__}, not an object")
    return value
