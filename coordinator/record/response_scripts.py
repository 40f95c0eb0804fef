"""The Redis scripts of the responses stored for clients: each is atomic, as in scripts.py.

A member of the list of responses is ``BYTES/OWNER:ID``: the size of the key's value, and the rest
of the key's name. Its score is the time at which the key expires, so the first members are the
least recently used responses.
"""

from typing import Final

from coordinator.record import keys
from coordinator.record.scripts import Command, Script
from coordinator.record.settings import ResponseLimits
from coordinator.record.stored_response import StoredResponse

MISSING: Final = "missing"
TOO_LONG: Final = "too long"
_MOST_TURNS: Final = 4_096
_MOST_EXPIRED: Final = 256  # expired members that a call removes at most

_KEEP = Script("""
-- KEYS response, list of responses, their bytes.
-- ARGV OWNER:ID, previous id, items, body, ttl, most bytes of all, prefix, most expired at a time.
local now = tonumber(redis.call('TIME')[1])
local member = (#ARGV[3] + #ARGV[4]) .. '/' .. ARGV[1]
local function bytes_of(member) return tonumber(string.match(member, '^%d+')) or 0 end
local function forget(members)
  for _, each in ipairs(members) do
    redis.call('ZREM', KEYS[2], each)
    redis.call('DECRBY', KEYS[3], bytes_of(each))
  end
end
local listed, counted = own(KEYS[2], 'zset'), own(KEYS[3], 'string')
if not listed or not counted then
  local total = 0
  for _, each in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do total = total + bytes_of(each) end
  redis.call('SET', KEYS[3], total)
end
forget(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', '(' .. now, 'LIMIT', 0, ARGV[8]))
own(KEYS[1], 'hash')
redis.call('HSET', KEYS[1], 'previous', ARGV[2], 'items', ARGV[3], 'body', ARGV[4],
           'member', member)
redis.call('EXPIRE', KEYS[1], ARGV[5])
if redis.call('ZADD', KEYS[2], now + ARGV[5], member) == 1 then
  redis.call('INCRBY', KEYS[3], bytes_of(member))
end
while tonumber(redis.call('GET', KEYS[3])) > tonumber(ARGV[6]) do
  local oldest = redis.call('ZRANGE', KEYS[2], 0, 0)
  if #oldest == 0 then
    redis.call('SET', KEYS[3], 0)
    break
  end
  forget(oldest)
  redis.call('UNLINK', ARGV[7] .. string.match(oldest[1], '/(.*)$'))
end
return answer(redis.call('EXISTS', KEYS[1]))
""")

_CONVERSATION = Script("""
-- KEYS list of responses. ARGV prefix of the keys, id, ttl, most turns, most bytes.
-- Returns {'', items of the last response, of the one before, …}, or why not, and the id.
local now = tonumber(redis.call('TIME')[1])
local listed = own(KEYS[1], 'zset')
local id, total = ARGV[2], 0
local found = {''}
while id ~= '' do
  local key = ARGV[1] .. id
  if not own(key, 'hash') then return answer({'missing', id}) end
  local fields = redis.call('HMGET', key, 'previous', 'items', 'member')
  total = total + #(fields[2] or '')
  if #found > tonumber(ARGV[4]) or total > tonumber(ARGV[5]) then
    return answer({'too long', id})
  end
  found[#found + 1] = fields[2] or '[]'
  redis.call('EXPIRE', key, ARGV[3])
  if listed and fields[3] then redis.call('ZADD', KEYS[1], 'XX', now + ARGV[3], fields[3]) end
  id = fields[1] or ''
end
return answer(found)
""")

_DELETE = Script("""
-- KEYS response, list of responses, their bytes. Returns how many responses it removed.
local member = own(KEYS[1], 'hash') and redis.call('HGET', KEYS[1], 'member')
if member and own(KEYS[2], 'zset') and redis.call('ZREM', KEYS[2], member) == 1 then
  redis.call('DECRBY', KEYS[3], string.match(member, '^%d+'))
end
return answer(redis.call('UNLINK', KEYS[1]))
""")

SOURCES: Final = tuple(script.source for script in (_KEEP, _CONVERSATION, _DELETE))


def keep(owner: str, response: StoredResponse, limits: ResponseLimits) -> Command:
    """Store a response. Replies 1, or 0 if it is larger than all responses together may be."""
    key = keys.response(owner, response.response_id)
    return _KEEP.command(
        [key, keys.RESPONSES, keys.RESPONSE_BYTES],
        key.removeprefix(keys.RESPONSE_PREFIX), response.previous_id, response.items, response.body,
        limits.response_ttl_s, limits.response_bytes, keys.RESPONSE_PREFIX, _MOST_EXPIRED,
    )  # fmt: skip


def conversation(owner: str, response_id: str, limits: ResponseLimits) -> Command:
    """Read a conversation backwards, and restart the time to live of each of its responses. Replies
    ["", items of this response, items of the previous response, …], or MISSING or TOO_LONG with the
    id of the response at fault."""
    return _CONVERSATION.command(
        [keys.RESPONSES],
        keys.response(owner, ""), response_id, limits.response_ttl_s, _MOST_TURNS,
        limits.max_conversation_bytes,
    )  # fmt: skip


def delete(owner: str, response_id: str) -> Command:
    """Delete a response. Replies 1 if it was stored, else 0."""
    key = keys.response(owner, response_id)
    return _DELETE.command([key, keys.RESPONSES, keys.RESPONSE_BYTES])
