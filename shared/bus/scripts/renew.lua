#!lua flags=allow-oom
-- renew: says that a worker is alive, for all jobs that it holds, even if it holds none.
-- Invariant: an entry's idle time starts anew only for the holder of the lease. (An unchecked XCLAIM would steal the
-- entry back from whoever has taken it over.)
-- uses: clock
local beats = KEYS[1] -- then one job for each lease
local worker, lease_ms = ARGV[1], tonumber(ARGV[2])
local BEATS_KEPT_MS = 3600000

-- When each worker was heard last, and since when the living have been heard without a break: a server that was away
-- has heard nobody, and must not take that for their death.
local now = clock()
local last = redis.call('HGET', beats, '@last')
if not last or math.abs(now - last) > lease_ms / 2 then
  redis.call('HSET', beats, '@since', now)
end
redis.call('HSET', beats, worker, now, '@last', now)
redis.call('PEXPIRE', beats, BEATS_KEPT_MS)

local verdicts = {}
for i = 2, #KEYS do
  local job = KEYS[i]
  local status, lease, stream, entry, cancel = unpack(
    redis.call('HMGET', job, 'status', 'lease', 'stream', 'entry', 'cancel'))
  if status ~= 'running' or lease ~= ARGV[i + 1] then
    verdicts[i - 1] = 'lost'
  else
    redis.pcall('XCLAIM', stream, 'workers', worker, 0, entry, 'JUSTID') -- no group: the next claim makes one
    verdicts[i - 1] = cancel and 'cancel' or 'ok'
  end
end
return verdicts
