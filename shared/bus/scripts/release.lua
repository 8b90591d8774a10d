#!lua flags=allow-oom
-- release: a worker gives a job back, with what it has said so far.
-- Invariant: only the holder of the lease gives it back; no attempt is burnt, and the job can be claimed at once. One
-- that somebody has cancelled ends instead: it might wait long for a claim that meets it. So does what only this worker
-- could do.
-- uses: clock ending putback orphans
local job = KEYS[1]
local prefix, lease, worker = ARGV[1], ARGV[2], ARGV[3]

local held, status, released_by, cancel, queue, home = unpack(
  redis.call('HMGET', job, 'lease', 'status', 'released_by', 'cancel', 'queue', 'home'))
if released_by == lease then
  return 1 -- said again because our reply was lost
end
if held ~= lease or status ~= 'running' then
  return 0
end
redis.call('HSET', job, 'released_by', lease)
local id = string.sub(job, #prefix + #'job:' + 1)
if cancel then
  end_job(prefix, id, clock(), 'cancelled', without_answer('cancelled', 'cancelled', 'The job was cancelled.'))
elseif queue == 'own' and home == '' then
  end_bound(prefix, id, clock())
else
  redis.call('HINCRBY', job, 'attempts', -1)
  put_back(prefix, job, worker)
end
return 1
