#!lua
-- create: a place where a tenant wants to be told.
-- Invariant: a tenant has no more of them than it may, and what its list names is there. Refused when memory is full.
-- uses: clock
local endpoint, index = KEYS[1], KEYS[2]
local id, tenant, name, url = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local events, secrets, most = ARGV[5], ARGV[6], tonumber(ARGV[7])

if redis.call('EXISTS', endpoint) == 1 then
  return 1 -- said again because our reply was lost
end
if redis.call('ZCARD', index) >= most then
  return 0
end
local now = clock()
redis.call(
  'HSET', endpoint, 'tenant', tenant, 'name', name, 'url', url, 'events', events, 'secrets', secrets, 'created_ms',
  now, 'updated_ms', now)
redis.call('ZADD', index, now, id)
return 1
