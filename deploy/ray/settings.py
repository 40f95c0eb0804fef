"""The arguments of the application, as the YAML file of ``serve run`` has them under ``args``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

STOP_S = 20.0
"""Time that ``baton up`` gets to end, on top of its drain."""
_OWN = {
    "BATON_HOST": "the node's own address is used",
    "BATON_PORT": "it is `port`",
    "BATON_DRAIN_TIMEOUT": "it is `drain_s`",
}


@dataclass(frozen=True)
class NodeSettings:
    """How each node's stack is started. Raises ValueError that names the setting.

    ``settings``: BATON_* variables of ``baton up``, over those of the environment that Ray was
    started in. Secrets belong there, as Ray's dashboard shows this file. ``port``: of the stack, 0:
    any free one. ``drain_s``: time that requests have to end at a node that Ray stops.
    ``unready_s``: a stack that is not ready for so long is replaced.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    drain_s: float = 600.0
    unready_s: float = 900.0

    def __post_init__(self) -> None:
        for name in self.settings:
            if not name.startswith("BATON_"):
                raise ValueError(f"settings: {name} is no setting of Baton, BATON_…")
            if why := _OWN.get(name):
                raise ValueError(f"settings: {name} cannot be set here: {why}")
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port: {self.port} is not between 0 (any free port) and 65535")
        for name in ("drain_s", "unready_s"):
            if not 0 < (seconds := getattr(self, name)) < math.inf:
                raise ValueError(f"{name}: must be above 0 seconds, not {seconds:g}")


def node_settings(arguments: Mapping[str, Any]) -> NodeSettings:
    """Read the arguments. Raises ValueError for an unknown one, or a value of a wrong type."""
    known = {each.name for each in fields(NodeSettings)}
    if unknown := sorted(set(arguments) - known):
        raise ValueError(f"{unknown[0]}: no such argument; there are {', '.join(sorted(known))}")
    given = dict(arguments)
    settings = given.pop("settings", None) or {}
    if not isinstance(settings, Mapping):
        raise ValueError(f"settings: must be a map of BATON_* variables, not {settings!r}")
    for name, value in given.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ValueError(f"{name}: must be a number, not {value!r}")
    return NodeSettings(settings={name: _text(value) for name, value in settings.items()}, **given)


def _text(value: object) -> str:
    """A value as text. YAML reads on and off as true and false."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
