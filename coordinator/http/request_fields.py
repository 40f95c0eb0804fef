"""Parts of the structs in request_schemas.py: errors that name a field, and fields that other
servers have and this one does not, which are refused unless they are empty."""

import typing
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

UNSUPPORTED = "unsupported_parameter"
_NOT_YET = "Not supported yet."
_EMPTY: tuple[Any, ...] = (None, False, [], {}, "")
_LONGEST_EMPTY = 100  # bytes, spaces included
_END = r"$(?!\n)"
"""Python's ``$`` also matches before a line break at the end."""


def whole(pattern: str) -> Meta:
    """Metadata of a text field whose whole value must match ``pattern``."""
    return Meta(pattern=f"^{pattern}{_END}")


def published(pattern: str) -> str:
    """The pattern of a field for OpenAPI, where ``$`` is the end: engines without look-ahead read
    it too."""
    return pattern.replace(_END, "$")


class FieldError(ValueError):
    """A field is wrong. ``param`` is its path from the struct that raises this; "" for the struct
    itself."""

    def __init__(self, param: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def harmless(*values: Any) -> Meta:
    """Metadata of an unsupported field that is accepted if it is empty or one of ``values``."""
    return Meta(description=_NOT_YET, extra_json_schema={"enum": [*_EMPTY, *values]})


Unsupported = Annotated[Raw, harmless()] | UnsetType


class RequestBody(Struct, kw_only=True, omit_defaults=True):
    """A body that raises FieldError for an unsupported field, unless its value is harmless."""

    def __post_init__(self) -> None:
        for name, harmless in unsupported_fields(type(self)).items():
            raw = getattr(self, name)
            if raw is not UNSET and not _is_one_of(raw, harmless):
                raise FieldError(name, "not supported by this server yet", UNSUPPORTED)


@cache
def unsupported_fields(body: type[RequestBody]) -> dict[str, list[Any]]:
    """The harmless values of each unsupported field."""
    return {
        name: meta.extra_json_schema["enum"]
        for name, hint in typing.get_type_hints(body, include_extras=True).items()
        for option in typing.get_args(hint)
        for meta in getattr(option, "__metadata__", ())
        if meta.description == _NOT_YET
    }


def _is_one_of(raw: Raw, values: Sequence[Any]) -> bool:
    if memoryview(raw).nbytes > _LONGEST_EMPTY:
        return False
    found = msgspec.json.decode(raw)
    return any(type(found) is type(value) and found == value for value in values)
