#!lua flags=allow-oom
-- cancel: somebody no longer wants a job.
-- Invariant: a queued job ends now; a running one is ended by its worker, or by the claim that finds it without one;
-- an ended one keeps the end that it had.
-- uses: clock ending
local job = KEYS[1]
local prefix, id = ARGV[1], ARGV[2]

local status, worker = unpack(redis.call('HMGET', job, 'status', 'worker'))
if not status then
  return 0
end
if status == 'queued' then
  end_job(prefix, id, clock(), 'cancelled', without_answer('cancelled', 'cancelled', 'The job was cancelled.'))
elseif status == 'running' then
  redis.call('HSET', job, 'cancel', 1)
  redis.call('PUBLISH', prefix .. 'control:' .. worker, '{"cancel":"' .. id .. '"}')
end
return 1
