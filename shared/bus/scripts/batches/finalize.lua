#!lua flags=allow-oom
-- finalize: no line of a batch is fed from here on, for it is over or its time is.
-- Invariant: only its holder says so, and "over" only when all of the plan has been fed. One that is cancelled stays so.
-- uses: clock attention
local batch = KEYS[1]
local token, why = ARGV[1], ARGV[2]

if not is_held(batch, token) then
  return 0
end
local status, n_fed, n_planned = unpack(redis.call('HMGET', batch, 'status', 'n_fed', 'n_planned'))
if status == 'finalizing' or status == 'cancelling' then
  return 1
elseif status ~= 'in_progress' or why == 'cancelled' or (why == 'over' and n_fed ~= n_planned) then
  return 0
end
redis.call('HSET', batch, 'status', 'finalizing', 'finalizing_ms', clock(), 'why', why)
return 1
