-- How a job goes back among the waiting, with what it has said so far.
-- Invariant: nobody holds it, it counts as waiting, and its entry is so old that the next sweep of anybody finds it.
local AGES_MS = 1000000000 -- idle for longer than any lease

local function put_back(prefix, key, worker)
  local stream, entry, model, queue, tenant = unpack(
    redis.call('HMGET', key, 'stream', 'entry', 'model', 'queue', 'tenant'))
  local load = prefix .. 'load:' .. model
  redis.call('HSET', key, 'status', 'queued')
  redis.call('HDEL', key, 'lease')
  redis.call('HINCRBY', load, 'queued:' .. queue, 1)
  redis.call('HINCRBY', load, 'queued:' .. queue .. ':' .. tenant, 1)
  redis.pcall('XCLAIM', stream, 'workers', worker, 0, entry, 'IDLE', AGES_MS, 'JUSTID')
  redis.call('PUBLISH', prefix .. 'wake:' .. model, 'released')
end
