#!lua flags=allow-oom
-- release: a worker gives a job back, with what it has said so far.
-- Invariant: only the holder of the lease gives it back; no attempt is burnt, and the job can be claimed at once.
local job = KEYS[1]
local prefix, lease, worker = ARGV[1], ARGV[2], ARGV[3]
local AGES_MS = 1000000000 -- idle for longer than any lease

local held, status, released_by, stream, entry, model, queue, tenant = unpack(redis.call(
  'HMGET', job, 'lease', 'status', 'released_by', 'stream', 'entry', 'model', 'queue',
  'tenant'))
if released_by == lease then
  return 1 -- said again because our reply was lost
end
if held ~= lease or status ~= 'running' then
  return 0
end
local load = prefix .. 'load:' .. model
redis.call('HSET', job, 'status', 'queued', 'released_by', lease)
redis.call('HDEL', job, 'lease')
redis.call('HINCRBY', job, 'attempts', -1)
redis.call('HINCRBY', load, 'queued:' .. queue, 1)
redis.call('HINCRBY', load, 'queued:' .. queue .. ':' .. tenant, 1)
redis.pcall('XCLAIM', stream, 'workers', worker, 0, entry, 'IDLE', AGES_MS, 'JUSTID')
redis.call('PUBLISH', prefix .. 'wake:' .. model, 'released')
return 1
