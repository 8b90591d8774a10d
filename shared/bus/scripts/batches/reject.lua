#!lua flags=allow-oom
-- reject: no line of a batch can be run.
-- Invariant: only while it is validating; it has failed then, with why.
-- uses: clock attention batchend
local batch = KEYS[1]
local prefix, id, token, keep_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[6])
local faults, first_faults = ARGV[4], ARGV[5]

local status, ended_by = unpack(redis.call('HMGET', batch, 'status', 'ended_by'))
if ended_by == token then
  return 1 -- said again because our reply was lost
elseif not is_held(batch, token) or status ~= 'validating' then
  return 0
end
redis.call('HSET', batch, 'faults', faults, 'first_faults', first_faults)
end_batch(prefix, id, clock(), 'failed', token, keep_ms)
return 1
