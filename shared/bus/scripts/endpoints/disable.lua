#!lua flags=allow-oom
-- disable: nothing is sent to an endpoint any more until its tenant enables it.
-- Invariant: the first reason stands, and what waits is looked at soon, to be given up.
-- uses: clock
local endpoint, schedule, schedules = KEYS[1], KEYS[2], KEYS[3]
local id, reason = ARGV[1], ARGV[2]

if redis.call('EXISTS', endpoint) == 1 and redis.call('HEXISTS', endpoint, 'disabled_ms') == 0 then
  local now = clock()
  redis.call('HSET', endpoint, 'disabled_ms', now, 'disabled_reason', reason)
  redis.call('HDEL', endpoint, 'rest_ms')
  if redis.call('EXISTS', schedule) == 1 then
    redis.call('ZADD', schedules, now, id)
  end
end
return 1
