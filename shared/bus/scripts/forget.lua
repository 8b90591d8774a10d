#!lua flags=allow-oom
-- forget: somebody no longer wants what is kept of a job.
-- Invariant: only of one that has ended; its hash, its log and its place in its tenant's list go together.
local job, log, index = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

local status = redis.call('HGET', job, 'status')
if status == 'queued' or status == 'running' then
  return 0
end
redis.call('DEL', job, log)
redis.call('ZREM', index, id)
return 1
