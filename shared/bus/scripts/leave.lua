#!lua flags=allow-oom
-- leave: a worker will claim nothing any more.
-- Invariant: what was meant for it alone and is not in its hands is others' to settle from here on.
-- uses: clock
local beats = KEYS[1]
local worker, wake = ARGV[1], ARGV[2]
local KEPT_MS = 3600000

redis.call('HSET', beats, worker .. ':left', clock())
redis.call('PEXPIRE', beats, KEPT_MS)
redis.call('PUBLISH', wake, 'released')
return 1
