#!lua flags=allow-oom
-- cancel: somebody no longer wants a batch.
-- Invariant: no line is fed from here on. What is being collected, or has ended, stays as it is, and so does a batch
-- whose time was over before.
-- uses: clock attention
local batch = KEYS[1]
local prefix, id = ARGV[1], ARGV[2]

local status, expires = unpack(redis.call('HMGET', batch, 'status', 'expires_ms'))
if not status then
  return 0
end
local now = clock()
if (status == 'validating' or status == 'in_progress') and now < tonumber(expires) then
  redis.call('HSET', batch, 'status', 'cancelling', 'cancelling_ms', now)
  attend(prefix, id, now)
end
return 1
