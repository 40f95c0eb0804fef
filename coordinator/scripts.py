"""What runs inside Redis: every change of state is one atomic, idempotent script.

Each may be sent twice, or run late by a server that had stalled, without harm. Commands are
plain tuples for ``RedisLink.run``.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from coordinator import keys
from coordinator.record import RequestRecord

Command = tuple[str | bytes | int, ...]

APPLIED: Final = 1
NOT_NEWER: Final = 0
FORGOTTEN: Final = -1

_PUT = """
-- KEYS request, open set, the writer's coordinator, the recent ones.
-- ARGV order, ended, id, ttl, open ttl, fields, received at or '', most recent ones, their ttl.
if redis.call('EXISTS', KEYS[3]) == 0 then return -1 end
local stored = redis.call('HGET', KEYS[1], 'order')
if stored and stored >= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], unpack(cmsgpack.unpack(ARGV[6])))
redis.call('EXPIRE', KEYS[1], ARGV[4])
if ARGV[2] == '1' then
  redis.call('SREM', KEYS[2], ARGV[3])
else
  redis.call('SADD', KEYS[2], ARGV[3])
  redis.call('EXPIRE', KEYS[2], ARGV[5])
end
if ARGV[7] ~= '' then
  redis.call('ZADD', KEYS[4], ARGV[7], ARGV[3])
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - ARGV[8])
  redis.call('EXPIRE', KEYS[4], ARGV[9])
end
return 1
"""

_JOIN = """
-- KEYS coordinators, own hash.
-- ARGV instance, protocol, prefix of hashes, ttl ms, ttl of the list, fields.
-- Returns {'conflict', instance, protocol} or {'known' | 'new', dead instances ...}.
local dead = {}
for _, other in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if other ~= ARGV[1] then
    local protocol = redis.call('HGET', ARGV[3] .. other, 'protocol')
    if not protocol then
      dead[#dead + 1] = other
    elseif protocol ~= ARGV[2] then
      return {'conflict', other, protocol}
    end
  end
end
local known = redis.call('EXISTS', KEYS[2])
redis.call('HSET', KEYS[2], unpack(cmsgpack.unpack(ARGV[6])))
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('SADD', KEYS[1], ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[5])
return {known == 1 and 'known' or 'new', unpack(dead)}
"""

_FAIL_LOST = """
-- KEYS coordinators, the dead one's hash, its open set.
-- ARGV instance, prefix of requests, most to do, now, ttl, message.
-- Fails what it left open, keeping the revision: any verdict of its own is newer than this guess.
-- Returns {failed, left to do}.
if redis.call('EXISTS', KEYS[2]) == 1 then return {0, 0} end
local failed = 0
for _, id in ipairs(redis.call('SPOP', KEYS[3], ARGV[3])) do
  local key = ARGV[2] .. id
  local attempt, revision =
    string.match(redis.call('HGET', key, 'order') or '', '^0(%d%d%d%d%d%d%d%d%d)%d(%d+)$')
  if attempt then
    redis.call('HSET', key, 'state', 'failed', 'order', '1' .. attempt .. '5' .. revision,
      'failure_code', 'coordinator_lost', 'failure_message', ARGV[6], 'ended_at', ARGV[4])
    redis.call('EXPIRE', key, ARGV[5])
    failed = failed + 1
  end
end
local left = redis.call('SCARD', KEYS[3])
if left == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
return {failed, left}
"""

_LEAVE = """
-- KEYS coordinators, own hash, own open set. ARGV instance. What is still open stays to be failed.
redis.call('DEL', KEYS[2])
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('SREM', KEYS[1], ARGV[1]) end
return 1
"""

_REPLACE = """
-- KEYS hash. ARGV ttl ms, fields; without fields the hash goes.
redis.call('DEL', KEYS[1])
local fields = cmsgpack.unpack(ARGV[2])
if #fields > 0 then
  redis.call('HSET', KEYS[1], unpack(fields))
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
end
return 1
"""

_CLAIM = """
-- KEYS leases of the GPUs wanted, best first; then, unless it is to renew, the mark of each that
-- says it is unfit, where there is one. ARGV holder, share, ttl ms, how many GPUs.
-- Takes or renews the one it has already, else the first unmarked of those that the fewest hold.
-- Returns {number of the GPU or 0, for each its holders ..., for each marked one its number, why it
-- is unfit and for how many ms, or -1: for ever ...}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local best, fewest, answer, marks = 0, nil, {0}, {}
for i = 1, tonumber(ARGV[4]) do
  local key, mark = KEYS[i], KEYS[ARGV[4] + i]
  local names, mine = {}, false
  local fields = redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    if fields[f] == 'share' then
    elseif tonumber(fields[f + 1]) <= now then
      redis.call('HDEL', key, fields[f])
    else
      names[#names + 1] = fields[f]
      mine = mine or fields[f] == ARGV[1]
    end
  end
  answer[i + 1] = table.concat(names, ' and ')
  local fits = #names == 0
    or (#names < tonumber(ARGV[2]) and redis.call('HGET', key, 'share') == ARGV[2])
  local why = mark and redis.call('GET', mark)
  if why then
    fits = false
    for _, value in ipairs({i, why, redis.call('PTTL', mark)}) do marks[#marks + 1] = value end
  end
  local rank = mine and -1 or #names
  if (mine or fits) and (fewest == nil or rank < fewest) then best, fewest = i, rank end
end
if best > 0 then
  redis.call('HSET', KEYS[best], 'share', ARGV[2], ARGV[1], string.format('%.0f', now + ARGV[3]))
  redis.call('PEXPIRE', KEYS[best], ARGV[3])
end
answer[1] = best
for _, value in ipairs(marks) do answer[#answer + 1] = value end
return answer
"""

_RELEASE = """
-- KEYS lease of a GPU. ARGV holder.
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HLEN', KEYS[1]) <= 1 then redis.call('DEL', KEYS[1]) end
return 1
"""

_MARK = """
-- KEYS mark of a GPU, number of the mark that was made last. ARGV why, number, ttl ms.
-- Marks it as unfit, unless this mark was made before: then somebody has cleared it since.
if redis.call('GET', KEYS[2]) == ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
"""

SOURCES: Final = (_PUT, _JOIN, _FAIL_LOST, _LEAVE, _REPLACE, _CLAIM, _RELEASE, _MARK)


def put(record: RequestRecord, writer: str) -> Command:
    """Compare and set, and list it among the recent ones if it says when it was received.
    Replies APPLIED, NOT_NEWER, or FORGOTTEN when the server does not know ``writer``, the
    coordinator that sends this, and so has changed nothing."""
    ttl_s = keys.ENDED_TTL_S if record.ended else keys.OPEN_TTL_S
    received_at = "" if record.received_at is None else str(record.received_at)
    return (
        "EVALSHA", _sha(_PUT), 4,
        keys.request(record.request_id), keys.open_requests(record.coordinator),
        keys.coordinator(writer), keys.RECENT,
        record.order, int(record.ended), record.request_id, ttl_s, keys.OPEN_TTL_S,
        _flat(record.to_fields()), received_at, keys.RECENT_MAX, keys.RECENT_TTL_S,
    )  # fmt: skip


def join(instance: str, protocol: str, fields: Mapping[str, str], ttl_s: float) -> Command:
    """Register or refresh a coordinator, unless a live one speaks another protocol."""
    return (
        "EVALSHA", _sha(_JOIN), 2, keys.COORDINATORS, keys.coordinator(instance),
        instance, protocol, keys.COORDINATOR_PREFIX, int(ttl_s * 1000), keys.COORDINATORS_TTL_S,
        _flat({**fields, "protocol": protocol}),
    )  # fmt: skip


def fail_lost(dead: str, at: float, most: int) -> Command:
    """Fail up to ``most`` open requests of a coordinator, if it is still dead."""
    return (
        "EVALSHA", _sha(_FAIL_LOST), 3,
        keys.COORDINATORS, keys.coordinator(dead), keys.open_requests(dead),
        dead, keys.REQUEST_PREFIX, most, str(at), keys.ENDED_TTL_S,
        f"coordinator {dead} was lost before this request ended",
    )  # fmt: skip


def leave(instance: str) -> Command:
    return (
        "EVALSHA", _sha(_LEAVE), 3, keys.COORDINATORS, keys.coordinator(instance),
        keys.open_requests(instance), instance,
    )  # fmt: skip


def replace(key: str, fields: Mapping[str, str], ttl_s: float) -> Command:
    """Make the hash ``key`` hold exactly ``fields`` for ``ttl_s``."""
    return ("EVALSHA", _sha(_REPLACE), 1, key, int(ttl_s * 1000), _flat(fields))


def claim(holder: str, gpus: Sequence[str], share: int, ttl_s: float) -> Command:
    """Take a lease. Replies which of ``gpus`` it is, from 1, or 0; then who holds each; then for
    each that is marked as unfit three values: which, why, and for how many ms (-1: for ever)."""
    wanted = [*map(keys.lease, gpus), *map(keys.unfit, gpus)]
    return (
        "EVALSHA", _sha(_CLAIM), len(wanted), *wanted, holder, share, int(ttl_s * 1000), len(gpus),
    )  # fmt: skip


def renew(holder: str, gpu: str, share: int, ttl_s: float) -> Command:
    """Renew a lease, or take it anew, marked or not. Replies 1, or 0; then who holds the GPU."""
    return ("EVALSHA", _sha(_CLAIM), 1, keys.lease(gpu), holder, share, int(ttl_s * 1000), 1)


def release(holder: str, gpu: str) -> Command:
    return ("EVALSHA", _sha(_RELEASE), 1, keys.lease(gpu), holder)


def mark(coordinator: str, gpu: str, why: str, number: int, left_ms: int) -> Command:
    """Mark a GPU as unfit, by the coordinator's mark ``number`` there: each is made only once, also
    when it is told again to a server that may have lost it."""
    made = keys.unfit_made(coordinator, gpu)
    return ("EVALSHA", _sha(_MARK), 2, keys.unfit(gpu), made, why, number, left_ms)


def _flat(fields: Mapping[str, str]) -> bytes:
    # One argument instead of some fifty: redis-py takes 0.5 µs to pack each.
    return msgspec.msgpack.encode([text for item in fields.items() for text in item])


def _sha(source: str) -> str:
    return _SHAS[source]


_SHAS: Final = {source: hashlib.sha1(source.encode()).hexdigest() for source in SOURCES}
