#!lua flags=allow-oom
-- planned: the lines of a batch were read, and those that are good stand in its plan.
-- Invariant: once, by its holder, and only while it is validating; with it the bad ones are counted, whose records are
-- segment 0.
-- uses: clock attention
local batch = KEYS[1]
local token = ARGV[1]
local n_total, n_planned, faults, first_faults, model = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local segment = ARGV[7] -- or empty

if not is_held(batch, token) then
  return 0
end
local status, planned_by, until_ms = unpack(redis.call('HMGET', batch, 'status', 'planned_by', 'until_ms'))
if planned_by == token then
  return 1 -- said again because our reply was lost
elseif status ~= 'validating' then
  return 0
end
redis.call(
  'HSET', batch, 'status', 'in_progress', 'in_progress_ms', clock(), 'planned_by', token, 'n_total', n_total,
  'n_planned', n_planned, 'n_failed', n_total - n_planned, 'faults', faults, 'first_faults', first_faults, 'model',
  model, 'n_segments', segment ~= '' and 1 or 0)
if segment ~= '' then
  redis.call('RPUSH', batch .. ':segments', segment)
  redis.call('PEXPIREAT', batch .. ':segments', until_ms)
end
return 1
