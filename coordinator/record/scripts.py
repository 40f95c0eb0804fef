"""The Redis scripts of the record: every change of state is one of them, atomic and idempotent.

A script may be sent twice, or run late by a server that had stalled, without harm. Commands are
plain tuples for ``RedisLink.run``. Every script ends with ``return answer(…)``; RedisLink unpacks
the answer and reports to Damage the keys that held another program's values and were replaced."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from coordinator.record import keys
from coordinator.record.record import RequestRecord

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
    """A Lua script. ``body`` may use what the prelude above defines."""

    def __init__(self, body: str) -> None:
        self.source: Final = _PRELUDE + body
        self._sha: Final = hashlib.sha1(self.source.encode()).hexdigest()

    def command(self, keys: Sequence[str], *args: str | bytes | int) -> Command:
        """The command that runs this script, on a server that has loaded it."""
        return (RUN, self._sha, len(keys), *keys, *args)


def flat(fields: Mapping[str, str]) -> bytes:
    """A hash as one argument, for ``cmsgpack.unpack``: redis-py takes 0.5 µs to pack each."""
    return msgspec.msgpack.encode([text for item in fields.items() for text in item])


APPLIED: Final = 1
NOT_NEWER: Final = 0
FORGOTTEN: Final = -1
SAME: Final = 2

_PUT = Script("""
-- KEYS request, open set, the writer's coordinator, the recent ones.
-- ARGV order, ended, id, ttl, open ttl, fields, received at or '', most recent ones, their ttl.
if redis.call('EXISTS', KEYS[3]) == 0 then return answer(-1) end
local stored = own(KEYS[1], 'hash') and redis.call('HGET', KEYS[1], 'order') or nil
if not order_parts(stored) then stored = nil end
if stored and stored > ARGV[1] then return answer(0) end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(cmsgpack.unpack(ARGV[6])))
redis.call('EXPIRE', KEYS[1], ARGV[4])
own(KEYS[2], 'set')
if ARGV[2] == '1' then
  redis.call('SREM', KEYS[2], ARGV[3])
else
  redis.call('SADD', KEYS[2], ARGV[3])
  redis.call('EXPIRE', KEYS[2], ARGV[5])
end
if ARGV[7] ~= '' then
  own(KEYS[4], 'zset')
  redis.call('ZADD', KEYS[4], ARGV[7], ARGV[3])
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[8])
  redis.call('EXPIRE', KEYS[4], ARGV[9])
end
return answer(stored == ARGV[1] and 2 or 1)
""")

_JOIN = Script("""
-- KEYS coordinators, own hash, own open set, the recent ones.
-- ARGV instance, protocol, prefix of hashes, ttl ms, ttl of the list, fields, most dead ones,
-- ttl of the recent ones, which no request refreshes in a quiet time.
-- Returns {'conflict', instance, protocol}, or {'known' | 'new', whether it was missing in the
-- list, how many open requests and recent ones are listed, dead instances ...}.
own(KEYS[1], 'set')
local dead = {}
for _, other in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local key, num_replaced = ARGV[3] .. other, #replaced
  if other == ARGV[1] then
  elseif own(key, 'hash') then
    local protocol = redis.call('HGET', key, 'protocol')
    if protocol and protocol ~= ARGV[2] and string.match(protocol, '^%w+/%d+$') then
      return answer({'conflict', other, protocol})
    end
    -- Without its time to live, as after another program's write, it would never be found dead; nor
    -- for as long as the clock of Redis was set back.
    local left = redis.call('PTTL', key)
    if left == -1 or left > tonumber(ARGV[4]) then redis.call('PEXPIRE', key, ARGV[4]) end
  elseif #replaced > num_replaced then
    -- It may live, and writes its own hash again soon if it does.
    redis.call('HSET', key, 'protocol', ARGV[2])
    redis.call('PEXPIRE', key, ARGV[4])
  elseif #dead < tonumber(ARGV[7]) then
    dead[#dead + 1] = other
  end
end
local known = own(KEYS[2], 'hash')
redis.call('HSET', KEYS[2], unpack(cmsgpack.unpack(ARGV[6])))
redis.call('PEXPIRE', KEYS[2], ARGV[4])
local unlisted = redis.call('SADD', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[5])
local num_open = own(KEYS[3], 'set') and redis.call('SCARD', KEYS[3]) or 0
local num_recent = own(KEYS[4], 'zset') and redis.call('ZCARD', KEYS[4]) or 0
redis.call('EXPIRE', KEYS[4], ARGV[8])
return answer({known and 'known' or 'new', unlisted, num_open, num_recent, unpack(dead)})
""")

_FAIL = """
-- Fails a request that its dead coordinator left open, keeping the revision: any verdict of its own
-- is newer than this guess. Returns how many that are.
local function fail(id, coordinator, key, now, ttl, message)
  own(key, 'hash')
  local ended, attempt, revision = order_parts(redis.call('HGET', key, 'order') or '')
  if ended == '1' then return 0 end
  if not ended then redis.call('DEL', key) end
  redis.call('HSET', key, 'request_id', id, 'coordinator', coordinator, 'state', 'failed',
    'order', '1' .. (attempt or '000000001') .. '5' .. (revision or '000000000'),
    'failure_code', 'coordinator_lost', 'failure_message',
    'coordinator ' .. coordinator .. message, 'ended_at', now)
  redis.call('EXPIRE', key, ttl)
  return 1
end
"""

_FAIL_LOST = Script(_FAIL + """
-- KEYS coordinators, the dead one's hash, its open set.
-- ARGV instance, prefix of requests, most to do, now, ttl, message.
-- Returns {failed, left to do}.
if redis.call('EXISTS', KEYS[2]) == 1 then return answer({0, 0}) end
local failed, left = 0, 0
if own(KEYS[3], 'set') then
  for _, id in ipairs(redis.call('SPOP', KEYS[3], ARGV[3])) do
    local key = ARGV[2] .. id
    if redis.call('EXISTS', key) == 1 then
      failed = failed + fail(id, ARGV[1], key, ARGV[4], ARGV[5], ARGV[6])
    end
  end
  left = redis.call('SCARD', KEYS[3])
end
if left == 0 and own(KEYS[1], 'set') then redis.call('SREM', KEYS[1], ARGV[1]) end
return answer({failed, left})
""")  # fmt: skip

_FAIL_RECENT = Script(_FAIL + """
-- KEYS the recent ones.
-- ARGV first rank, most to do, prefix of requests, prefix of coordinators, now, ttl, message.
-- Returns {failed, looked at}.
if not own(KEYS[1], 'zset') then return answer({0, 0}) end
local failed = 0
local ids = redis.call('ZREVRANGE', KEYS[1], ARGV[1], ARGV[1] + ARGV[2] - 1)
for _, id in ipairs(ids) do
  local key = ARGV[3] .. id
  local owner = redis.call('TYPE', key).ok == 'hash' and redis.call('HGET', key, 'coordinator')
  if owner and owner ~= '' and redis.call('EXISTS', ARGV[4] .. owner) == 0 then
    failed = failed + fail(id, owner, key, ARGV[5], ARGV[6], ARGV[7])
  end
end
return answer({failed, #ids})
""")  # fmt: skip

_LEAVE = Script("""
-- KEYS coordinators, own hash, own open set. ARGV instance. What is still open stays to be failed.
redis.call('DEL', KEYS[2])
if not own(KEYS[3], 'set') and own(KEYS[1], 'set') then redis.call('SREM', KEYS[1], ARGV[1]) end
return answer(1)
""")

_REPLACE = Script("""
-- KEYS hash. ARGV ttl ms, fields; without fields the hash goes.
redis.call('DEL', KEYS[1])
local fields = cmsgpack.unpack(ARGV[2])
if #fields > 0 then
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return answer(1)
""")

SOURCES: Final = tuple(
    script.source for script in (_PUT, _JOIN, _FAIL_LOST, _FAIL_RECENT, _LEAVE, _REPLACE)
)

# The coordinator's name precedes this text. The request may have ended, and its client may have
# seen that: what a coordinator did not write to Redis in time is lost when it dies.
_LOST = (
    " was lost before it recorded the end of this request: its outcome is unknown, and its client"
    " may have got a part of the answer, all of it, or nothing"
)
_MOST_DEAD = 100


def put(record: RequestRecord, writer: str) -> Command:
    """Compare and set a request's record, and list it as recent if it has ``received_at``. Replies
    APPLIED; SAME if this record was there already (its lists are repaired); NOT_NEWER; or
    FORGOTTEN, changing nothing, if the server does not know ``writer``, the sending coordinator."""
    ttl_s = keys.ENDED_TTL_S if record.ended else keys.OPEN_TTL_S
    received_at = "" if record.received_at is None else str(record.received_at)
    written = (
        keys.request(record.request_id), keys.open_requests(record.coordinator),
        keys.coordinator(writer), keys.RECENT,
    )  # fmt: skip
    return _PUT.command(
        written, record.order, int(record.ended), record.request_id, ttl_s, keys.OPEN_TTL_S,
        flat(record.to_fields()), received_at, keys.RECENT_MAX, keys.RECENT_TTL_S,
    )  # fmt: skip


def join(instance: str, protocol: str, fields: Mapping[str, str], ttl_s: float) -> Command:
    """Register or refresh a coordinator, unless a live one speaks another protocol."""
    met = (
        keys.COORDINATORS, keys.coordinator(instance), keys.open_requests(instance), keys.RECENT,
    )  # fmt: skip
    return _JOIN.command(
        met, instance, protocol, keys.COORDINATOR_PREFIX, int(ttl_s * 1000),
        keys.COORDINATORS_TTL_S, flat({**fields, "protocol": protocol}), _MOST_DEAD,
        keys.RECENT_TTL_S,
    )  # fmt: skip


def fail_lost(dead: str, at: float, most: int) -> Command:
    """Fail up to ``most`` open requests of the coordinator ``dead``, if it is still dead."""
    met = keys.COORDINATORS, keys.coordinator(dead), keys.open_requests(dead)
    return _FAIL_LOST.command(
        met, dead, keys.REQUEST_PREFIX, most, str(at), keys.ENDED_TTL_S, _LOST
    )


def fail_recent(first: int, at: float, most: int) -> Command:
    """Fail open requests whose coordinator is dead, among up to ``most`` of the recent requests
    from rank ``first`` on, whatever the lists of open requests say."""
    return _FAIL_RECENT.command(
        (keys.RECENT,), first, most, keys.REQUEST_PREFIX, keys.COORDINATOR_PREFIX,
        str(at), keys.ENDED_TTL_S, _LOST,
    )  # fmt: skip


def leave(instance: str) -> Command:
    met = keys.COORDINATORS, keys.coordinator(instance), keys.open_requests(instance)
    return _LEAVE.command(met, instance)


def replace(key: str, fields: Mapping[str, str], ttl_s: float) -> Command:
    """Make the hash ``key`` hold exactly ``fields`` for ``ttl_s``."""
    return _REPLACE.command((key,), int(ttl_s * 1000), flat(fields))
