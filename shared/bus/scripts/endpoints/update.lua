#!lua
-- update: some of what its tenant says of an endpoint changes.
-- Invariant: only of one that is there, and what changes nothing leaves no trace. The failures of another address, or
-- from before it was enabled, are not its own.
-- uses: clock delivery
local endpoint = KEYS[1]
local prefix, id, is_enabled = ARGV[1], ARGV[2], ARGV[3]
local changes = {unpack(ARGV, 4)} -- names of fields and what becomes of them

if redis.call('EXISTS', endpoint) == 0 then
  return 0
end
local is_changed = false
for i = 1, #changes, 2 do
  if changes[i + 1] ~= redis.call('HGET', endpoint, changes[i]) then
    redis.call('HSET', endpoint, changes[i], changes[i + 1])
    is_changed = true
    if changes[i] == 'url' then
      redis.call('HDEL', endpoint, 'failing_ms', 'rest_ms')
      announce(prefix, id)
    end
  end
end
if is_enabled == '1' and redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  redis.call('HDEL', endpoint, 'disabled_ms', 'disabled_reason', 'failing_ms')
  is_changed = true
end
if is_changed then
  redis.call('HSET', endpoint, 'updated_ms', clock())
end
return 1
