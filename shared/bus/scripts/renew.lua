#!lua flags=allow-oom
-- renew: says that a worker is alive, for all jobs that it holds.
-- Invariant: an entry's idle time starts anew only for the holder of the lease. (An unchecked XCLAIM would steal the
-- entry back from whoever has taken it over.)
local worker = ARGV[1] -- then one lease for each key
local verdicts = {}
for i, job in ipairs(KEYS) do
  local status, lease, stream, entry, cancel = unpack(
    redis.call('HMGET', job, 'status', 'lease', 'stream', 'entry', 'cancel'))
  if status ~= 'running' or lease ~= ARGV[i + 1] then
    verdicts[i] = 'lost'
  else
    redis.pcall('XCLAIM', stream, 'workers', worker, 0, entry, 'JUSTID') -- no group: the next claim makes one
    verdicts[i] = cancel and 'cancel' or 'ok'
  end
end
return verdicts
