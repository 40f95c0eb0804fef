"""The scripts of GPU leases and of marks on GPUs (leases.py), as scripts.py is of the record."""

from collections.abc import Sequence
from typing import Final

from coordinator.record import keys
from coordinator.record.script import Command, Script

_CLAIM = Script("""
-- KEYS leases of the GPUs wanted, best first; then, unless it is to renew, the mark of each that
-- says it is unfit, where there is one. ARGV holder, share, ttl ms, how many GPUs.
-- Takes or renews the one it has already, else the first unmarked of those that the fewest hold.
-- Returns {number of the GPU or 0, for each its holders ..., for each marked one its number, why it
-- is unfit and for how many ms, or -1: for ever ...}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local best, fewest, found, marks = 0, nil, {0}, {}
local unknown = 'a worker whose lease was overwritten'
local renewing = #KEYS == tonumber(ARGV[4])
for i = 1, tonumber(ARGV[4]) do
  local key, mark, num_replaced = KEYS[i], KEYS[ARGV[4] + i], #replaced
  if not own(key, 'hash') and #replaced > num_replaced and not renewing then
    -- Its holder renews it soon, if there is one; until then no other may have it.
    redis.call('HSET', key, unknown, string.format('%.0f', now + ARGV[3]))
    redis.call('PEXPIRE', key, ARGV[3])
  end
  local names, mine = {}, false
  local fields = redis.call('HGETALL', key)
  for f = 1, #fields, 2 do
    local ends_at = tonumber(fields[f + 1])
    if fields[f] == 'share' then
    elseif not ends_at or not (ends_at > now) or (renewing and fields[f] == unknown) then
      redis.call('HDEL', key, fields[f])
    else
      if ends_at > now + ARGV[3] then
        -- The clock of Redis was set back. If its holder lives, it is renewed soon.
        redis.call('HSET', key, fields[f], string.format('%.0f', now + ARGV[3]))
      end
      names[#names + 1] = fields[f]
      mine = mine or fields[f] == ARGV[1]
    end
  end
  found[i + 1] = table.concat(names, ' and ')
  local fits = #names == 0
    or (#names < tonumber(ARGV[2]) and redis.call('HGET', key, 'share') == ARGV[2])
  local marked = mark and redis.call('TYPE', mark).ok or 'none'
  if marked ~= 'none' then
    local why = marked == 'string' and redis.call('GET', mark) or 'its mark is a ' .. marked
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
found[1] = best
for _, value in ipairs(marks) do found[#found + 1] = value end
return answer(found)
""")

_RELEASE = Script("""
-- KEYS lease of a GPU. ARGV holder.
if own(KEYS[1], 'hash') then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if redis.call('HLEN', KEYS[1]) <= 1 then redis.call('DEL', KEYS[1]) end
end
return answer(1)
""")

_MARK = Script("""
-- KEYS mark of a GPU, number of the mark that was made last. ARGV why, number, ttl ms.
-- Marks it as unfit, unless this mark was made before: then somebody has cleared it since.
if own(KEYS[2], 'string') and redis.call('GET', KEYS[2]) == ARGV[2] then return answer(0) end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return answer(1)
""")

SOURCES: Final = tuple(script.source for script in (_CLAIM, _RELEASE, _MARK))


def claim(holder: str, gpus: Sequence[str], share: int, ttl_s: float) -> Command:
    """Take a lease. Replies which of ``gpus`` it is, from 1, or 0; then who holds each; then for
    each that is marked as unfit three values: which, why, and for how many ms (-1: for ever)."""
    wanted = [*map(keys.lease, gpus), *map(keys.unfit, gpus)]
    return _CLAIM.command(wanted, holder, share, int(ttl_s * 1000), len(gpus))


def renew(holder: str, gpu: str, share: int, ttl_s: float) -> Command:
    """Renew a lease, or take it anew, marked or not. Replies 1, or 0; then who holds the GPU."""
    return _CLAIM.command((keys.lease(gpu),), holder, share, int(ttl_s * 1000), 1)


def release(holder: str, gpu: str) -> Command:
    return _RELEASE.command((keys.lease(gpu),), holder)


def mark(coordinator: str, gpu: str, why: str, number: int, left_ms: int) -> Command:
    """Mark a GPU as unfit, by the coordinator's mark ``number`` there: each is made only once, also
    when it is told again to a server that may have lost it."""
    met = keys.unfit(gpu), keys.unfit_made(coordinator, gpu)
    return _MARK.command(met, why, number, left_ms)
