"""What the coordinator reads from a checkpoint's JSON files; weights are the workers' affair."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SAMPLING_KEYS = frozenset({"temperature", "top_p", "top_k", "min_p", "repetition_penalty"})


@dataclass(frozen=True)
class CheckpointInfo:
    """``sampling_defaults`` holds only what generation_config.json sets; requests override it.

    ``eos_ids`` ends a sequence at any of its ids; ``max_position`` is in tokens.
    """

    root: str
    eos_ids: tuple[int, ...]
    max_position: int
    sampling_defaults: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "CheckpointInfo":
        """Raises ValueError, naming the file, when config.json lacks what serving needs."""
        config = read_json(folder / "config.json")
        text = config.get("text_config") or config
        generation = read_json(folder / "generation_config.json", required=False)
        max_position = text.get("max_position_embeddings")
        if not isinstance(max_position, int) or max_position < 1:
            raise ValueError(f"{folder}/config.json: max_position_embeddings is {max_position!r}")
        eos = [
            *_ids(generation.get("eos_token_id")),
            *_ids(config.get("eos_token_id")),
            *_ids(text.get("eos_token_id")),
        ]
        return cls(
            root=str(folder),
            eos_ids=tuple(dict.fromkeys(eos)),
            max_position=max_position,
            sampling_defaults={
                key: value
                for key, value in generation.items()
                if key in _SAMPLING_KEYS and value is not None
            },
        )


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """The object in a JSON file; {} when it is missing and not required. Raises ValueError."""
    if not path.is_file():
        if required:
            raise ValueError(f"{path} is missing")
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object")
    return value


def _ids(value: Any) -> list[int]:
    if value is None:
        return []
    return [value] if isinstance(value, int) else list(value)
