#!lua flags=allow-oom
-- rest: nothing is sent to an endpoint for a while.
-- Invariant: the longest rest counts, and what waits stays. A disabled endpoint has no need of one.
-- uses: clock delivery
local endpoint = KEYS[1]
local prefix, id, until_ms = ARGV[1], ARGV[2], clock() + ARGV[3]

local is_disabled, rests = unpack(redis.call('HMGET', endpoint, 'disabled_ms', 'rest_ms'))
if redis.call('EXISTS', endpoint) == 1 and not is_disabled and until_ms > tonumber(rests or 0) then
  redis.call('HSET', endpoint, 'rest_ms', until_ms)
  announce(prefix, id)
end
return 1
