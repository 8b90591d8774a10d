#!lua flags=allow-oom
-- finish: every line of a batch stands in a segment, or the rest of its plan is lost.
-- Invariant: its last status, its two files, the expiry of all that is kept of it and its outbox row appear together,
-- once; and when a line is missing it has failed, with why.
-- uses: clock attention batchend filing
local batch = KEYS[1]
local prefix, id, token, keep_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local n_segments, life_ms = ARGV[5], tonumber(ARGV[6])
local output_id, output, error_id, errors = ARGV[7], ARGV[8], ARGV[9], ARGV[10] -- files and their records; or empty
local faults, first_faults = ARGV[11], ARGV[12] -- of one whose plan is lost; or nil
local ENDS = {over = 'completed', expired = 'expired'}

local status, ended_by, why, tenant, segments, n_total, n_completed, n_failed = unpack(redis.call(
  'HMGET', batch, 'status', 'ended_by', 'why', 'tenant', 'n_segments', 'n_total', 'n_completed', 'n_failed'))
if ended_by == token then
  return 1 -- said again because our reply was lost
elseif not is_held(batch, token) or segments ~= n_segments then
  return 0
elseif faults then
  if status == 'validating' then
    return 0
  end
  redis.call('HSET', batch, 'faults', faults, 'first_faults', first_faults)
elseif (status ~= 'finalizing' and status ~= 'cancelling') or n_completed + n_failed ~= tonumber(n_total) then
  return 0
end

local now = clock()
for field, file in pairs({output_file_id = {output_id, output}, error_file_id = {error_id, errors}}) do
  if file[1] ~= '' then
    file_record(prefix, file[1], tenant, file[2], now, life_ms)
    redis.call('HSET', batch, field, file[1])
  end
end
local last = faults and 'failed' or status == 'cancelling' and 'cancelled' or ENDS[why]
end_batch(prefix, id, now, last, token, keep_ms)
return 1
