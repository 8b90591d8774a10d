#!lua flags=allow-oom
-- rest: who holds a batch lets it go until later.
-- Invariant: it is due after that time and as soon as its window is over, at once when something has happened that its
-- holder may not know of, and with `wake_at` when so many lines have ended and are not collected.
-- uses: clock attention
local batch, due = KEYS[1], KEYS[2]
local id, token, after_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local wake_at = tonumber(ARGV[4]) -- 0: however many

if not is_held(batch, token) then
  return 0
end
local now = clock()
local at = later(now, after_ms)
local status, expires, is_awaited = unpack(redis.call('HMGET', batch, 'status', 'expires_ms', 'attend'))
if (status == 'validating' or status == 'in_progress') and now < tonumber(expires) then
  at = math.min(at, expires)
end
redis.call('HDEL', batch, 'hold', 'attend')
if is_awaited or (wake_at > 0 and redis.call('ZCARD', batch .. ':ended') >= wake_at) then
  at = now
elseif wake_at > 0 then
  redis.call('HSET', batch, 'wake_at', wake_at)
end
redis.call('ZADD', due, at, id)
return 1
