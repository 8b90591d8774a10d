#!lua
-- rotate: another secret signs from now on.
-- Invariant: it is the first and has no end; those before it sign until `grace_ms` from now at most, and never longer
-- than they would have.
-- uses: clock
local endpoint = KEYS[1]
local value, grace_ms, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local text = redis.call('HGET', endpoint, 'secrets')
if not text then
  return 0
end
local earlier = cjson.decode(text)
if earlier[1].value == value then
  return 1 -- said again because our reply was lost
end
local now = clock()
local secrets = {{value = value, expires_at = cjson.null}}
for _, secret in ipairs(earlier) do
  local until_s = (now + grace_ms) / 1000
  if type(secret.expires_at) == 'number' then
    until_s = math.min(until_s, secret.expires_at)
  end
  if until_s * 1000 > now and #secrets < most then
    secrets[#secrets + 1] = {value = secret.value, expires_at = until_s}
  end
end
redis.call('HSET', endpoint, 'secrets', cjson.encode(secrets), 'updated_ms', now)
return 1
