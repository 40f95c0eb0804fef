"""The clients' API keys: how they are written in the setting, and how a given one is recognised.

One key a line (or separated by commas, for the environment). Quotas a minute, the weight and the
priority among the keys are optional:

    # name:key[:requests_per_minute[:tokens_per_minute[:weight[:priority]]]]
    alice:sk-5f0c9e2b7d1a4c68
    batch:sk-93ab1d7e6f2048c5:600:2000000
    guest:sk-0d4e8f6a2b9c7135::50000
    chat:sk-7c1f4b9e0a6d2835:::4:1

Only a digest of each key is kept: no log, error or dump can show one.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MIN_KEY_LEN = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_KEY = re.compile(r"[!-~]+")
_QUOTA = re.compile(r"[1-9][0-9]{0,14}")
_FORM = "name:key[:requests_per_minute[:tokens_per_minute[:weight[:priority]]]]"
MAX_WEIGHT = 1_000
MAX_PRIORITY = 9


@dataclass(frozen=True)
class ApiKey:
    """An API key by its digest (``digest_of``); a quota of None is no limit. ``weight`` and
    ``priority`` say what it gets while other keys have requests waiting
    (core/placement/fair_queue.py)."""

    name: str
    digest: bytes
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    weight: int = 1
    priority: int = 0


def digest_of(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def parse_api_keys(text: str, setting: str) -> tuple[ApiKey, ...]:
    """The keys that ``text`` lists; () for an empty text.

    Raises ValueError that names ``setting`` and the line, and shows nothing that the line holds.
    """
    found: dict[str, ApiKey] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            continue
        entries = list(filter(None, (part.strip() for part in line.split(","))))
        for place, entry in enumerate(entries, start=1):
            where = f"line {number}" + (f", entry {place}" if len(entries) > 1 else "")
            try:
                key = _parsed(entry)
                _require_new(key, found)
            except ValueError as error:
                raise ValueError(f"{setting}: {where}: {error}") from None
            found[where] = key
    if text and not found:
        raise ValueError(f"{setting}: lists no key; each line is {_FORM}")
    return tuple(found.values())


def owner(presented: bytes, keys: Sequence[ApiKey]) -> ApiKey | None:
    """The key that was presented, or None. The time does not depend on how much of it is right."""
    digest, found = digest_of(presented), None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = key
    return found


def _parsed(entry: str) -> ApiKey:
    """Parse one entry. Raises ValueError that shows no part of ``entry``: in a malformed one any
    part may be the key."""
    name, *rest = entry.split(":")
    if not _NAME.fullmatch(name):
        raise ValueError("the name must be 1 to 64 letters, digits, '.', '_' or '-'")
    if not 1 <= len(rest) <= 5:
        raise ValueError(f"is not {_FORM}")
    key, *limits = rest
    if len(key) < MIN_KEY_LEN or not _KEY.fullmatch(key):
        raise ValueError(
            f"the key, which stands after the name, must be {MIN_KEY_LEN} or more printable ASCII "
            "characters, without spaces"
        )
    requests, tokens, weight, priority = [*limits, "", "", "", ""][:4]
    return ApiKey(
        name,
        digest_of(key.encode()),
        _quota(requests),
        _quota(tokens),
        _number("the weight", weight or "1", 1, MAX_WEIGHT),
        _number("the priority", priority or "0", 0, MAX_PRIORITY),
    )


def _quota(text: str) -> int | None:
    if text and not _QUOTA.fullmatch(text):
        raise ValueError("a quota must be a number of 1 or more a minute, or nothing")
    return int(text) if text else None


def _number(what: str, text: str, least: int, most: int) -> int:
    if not re.fullmatch(r"[0-9]{1,4}", text) or not least <= int(text) <= most:
        raise ValueError(f"{what} must be a number from {least} to {most}, or nothing")
    return int(text)


def _require_new(key: ApiKey, known: Mapping[str, ApiKey]) -> None:
    for where, other in known.items():
        if other.name == key.name:
            raise ValueError(f"has the same name as {where}")
        if other.digest == key.digest:
            raise ValueError(f"has the same key as {where}")
