#!lua flags=allow-oom
-- rest: who holds a batch lets it go until later.
-- Invariant: it is due after that time, at once when something has happened that its holder may not know of, and with
-- `wake_at` as soon as so many lines have ended and are not collected.
-- uses: clock attention
local batch, due = KEYS[1], KEYS[2]
local id, token, after_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])
local wake_at = tonumber(ARGV[4]) -- 0: however many

if not is_held(batch, token) then
  return 0
end
local now = clock()
local is_awaited = redis.call('HEXISTS', batch, 'attend') == 1
  or (wake_at > 0 and redis.call('ZCARD', batch .. ':ended') >= wake_at)
redis.call('HDEL', batch, 'hold', 'attend')
if not is_awaited and wake_at > 0 then
  redis.call('HSET', batch, 'wake_at', wake_at)
end
redis.call('ZADD', due, is_awaited and now or now + after_ms, id)
return 1
