#!lua
-- endpoint_update: some of what its tenant says of an endpoint changes.
-- Invariant: only of one that is there. The failures of another address, or from before it was enabled, are not its own.
-- uses: clock
local endpoint = KEYS[1]
local is_enabled, changes = ARGV[1], {unpack(ARGV, 2)} -- names of fields and what becomes of them

if redis.call('EXISTS', endpoint) == 0 then
  return 0
end
for i = 1, #changes, 2 do
  if changes[i] == 'url' and changes[i + 1] ~= redis.call('HGET', endpoint, 'url') then
    redis.call('HDEL', endpoint, 'failing_ms')
  end
  redis.call('HSET', endpoint, changes[i], changes[i + 1])
end
if is_enabled == '1' and redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  redis.call('HDEL', endpoint, 'disabled_ms', 'disabled_reason', 'failing_ms')
end
redis.call('HSET', endpoint, 'updated_ms', clock())
return 1
