"""A script that runs inside Redis: one atomic step, whatever another program wrote to Baton's keys.

Every script ends by ``return answer(…)``; RedisLink unpacks that and tells Damage of the keys that
were replaced.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

Command = tuple[str | bytes | int, ...]

RUN: Final = "EVALSHA"

_PRELUDE: Final = """
local replaced = {}
-- Whether `key` holds a value of type `kind`. A value of another type is not Baton's: it is
-- removed, and told with the answer.
local function own(key, kind)
  local found = redis.call('TYPE', key).ok
  if found == kind then return true end
  if found ~= 'none' then
    redis.call('UNLINK', key)
    replaced[#replaced + 1] = key .. ' (' .. found .. ')'
  end
  return false
end
local function answer(value) return {value, replaced} end
-- Whether it ended, the attempt and the revision of RequestRecord.order; nil where it is none.
local function order_parts(order)
  local digits = string.rep('%d', 9)
  return string.match(order or '', '^([01])(' .. digits .. ')%d(' .. digits .. ')$')
end
"""


class Script:
    """``body`` is Lua; it may use what the prelude above defines."""

    def __init__(self, body: str) -> None:
        self.source: Final = _PRELUDE + body
        self._sha: Final = hashlib.sha1(self.source.encode()).hexdigest()

    def command(self, keys: Sequence[str], *args: str | bytes | int) -> Command:
        """Run it, if the server knows it."""
        return (RUN, self._sha, len(keys), *keys, *args)


def flat(fields: Mapping[str, str]) -> bytes:
    """A hash as one argument, for ``cmsgpack.unpack``: redis-py takes 0.5 µs to pack each."""
    return msgspec.msgpack.encode([text for item in fields.items() for text in item])
