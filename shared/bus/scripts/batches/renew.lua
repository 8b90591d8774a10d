#!lua flags=allow-oom
-- renew: who holds a batch is at work on it still.
-- Invariant: nobody else has taken it meanwhile.
-- uses: clock attention
local batch, due = KEYS[1], KEYS[2]
local id, token, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3])

if not is_held(batch, token) then
  return 0
end
redis.call('ZADD', due, later(clock(), lease_ms), id)
return 1
