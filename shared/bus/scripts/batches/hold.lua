#!lua flags=allow-oom
-- hold: somebody takes a batch to work on it.
-- Invariant: only one that is due, and only the first who takes it at this epoch; whoever had it before can change
-- nothing any more.
-- uses: clock attention
local batch, attention = KEYS[1], KEYS[2]
local id, token, epoch, lease_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local now = clock()
local held, at = unpack(redis.call('HMGET', batch, 'hold', 'epoch'))
if held == token then
  return now -- said again because our reply was lost
end
local due = redis.call('ZSCORE', attention, id)
if at ~= epoch or not due or not is_past(tonumber(due), now) then
  return false
end
redis.call('HSET', batch, 'hold', token, 'epoch', epoch + 1)
redis.call('HDEL', batch, 'attend', 'wake_at')
redis.call('ZADD', attention, later(now, lease_ms), id)
return now
