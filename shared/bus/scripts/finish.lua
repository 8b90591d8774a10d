#!lua flags=allow-oom
-- finish: a worker's last word on a job.
-- Invariant: only the holder of the lease ends a running job, once; result, terminal log entry, acknowledgement and
-- outbox row appear together.
-- uses: clock ending
local job = KEYS[1]
local prefix, id, lease, status, result, first = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local why_dead = ARGV[7] -- or empty
local WINDOW_MS = 30000 -- over which the rate of endings is smoothed

local held, was, events, model, tenant, worker, finished_by = unpack(
  redis.call('HMGET', job, 'lease', 'status', 'events', 'model', 'tenant', 'worker', 'finished_by'))
if finished_by == lease then
  return 1 -- said again because our reply was lost
end
if held ~= lease or was ~= 'running' or first ~= events + 1 then
  return 0
end

local now = clock()
if why_dead ~= '' then
  bury(prefix, id, model, tenant, worker, why_dead)
end
end_job(prefix, id, now, status, result, lease)

-- A counter that fades: divided by its window it is the rate in which jobs end.
local load = prefix .. 'load:' .. model
local done, done_ms = unpack(redis.call('HMGET', load, 'done', 'done_ms'))
if not done then
  redis.call('HSET', load, 'done_since_ms', now)
  done, done_ms = 0, now
end
redis.call('HSET', load, 'done', done * math.exp((done_ms - now) / WINDOW_MS) + 1, 'done_ms', now)
return 1
