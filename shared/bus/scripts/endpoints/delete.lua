#!lua flags=allow-oom
-- delete: an endpoint is gone at once, and what there was for it soon.
-- Invariant: what is left of it is looked at until nothing is left.
-- uses: delivery
local endpoint, index, schedules = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

redis.call('DEL', endpoint)
redis.call('ZREM', index, id)
redis.call('ZADD', schedules, 0, id)
keep_for(schedules, PENDING_MS)
return 1
