"""What the coordinator reads from a checkpoint's JSON files; weights are the workers' affair."""

from dataclasses import dataclass, field
from pathlib import Path

from transport.checkpoint_folder import CONFIG, GENERATION, eos_ids, read_json

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
        config = read_json(folder / CONFIG)
        text = config.get("text_config") or config
        generation = read_json(folder / GENERATION, required=False)
        max_position = text.get("max_position_embeddings")
        if not isinstance(max_position, int) or max_position < 1:
            raise ValueError(f"{folder}/config.json: max_position_embeddings is {max_position!r}")
        return cls(
            root=str(folder),
            eos_ids=eos_ids(folder),
            max_position=max_position,
            sampling_defaults={
                key: value
                for key, value in generation.items()
                if key in _SAMPLING_KEYS and value is not None
            },
        )
