#!lua flags=allow-oom
-- cancel: somebody no longer wants a job.
-- Invariant: a queued job ends now; a running one is ended by its worker, or by the claim that finds it without one;
-- an ended one keeps the end that it had. Who is told how long a lease is ends one that has none, too.
-- uses: clock ending holder
local job = KEYS[1]
local prefix, id, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]) -- or nil

local status, worker, stream, entry = unpack(redis.call('HMGET', job, 'status', 'worker', 'stream', 'entry'))
if not status then
  return 0
end
if status == 'queued' or (status == 'running' and lease_ms and not has_holder(stream, entry, lease_ms)) then
  end_job(prefix, id, clock(), 'cancelled', without_answer('cancelled', 'cancelled', 'The job was cancelled.'))
elseif status == 'running' then
  redis.call('HSET', job, 'cancel', 1)
  redis.call('PUBLISH', prefix .. 'control:' .. worker, '{"cancel":"' .. id .. '"}')
end
return 1
