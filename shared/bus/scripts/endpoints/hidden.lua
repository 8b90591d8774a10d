#!lua flags=allow-oom
-- hidden: the endpoint of a webhook that a job or batch brought itself.
-- Invariant: it is in no list, and it goes by itself. Made when memory is full too, since what it is told of has
-- happened. Who names it again means it: that is what enables it again.
-- uses: clock
local endpoint = KEYS[1]
local tenant, url, events, secrets, life_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

if redis.call('EXISTS', endpoint) == 0 then
  local now = clock()
  redis.call(
    'HSET', endpoint, 'tenant', tenant, 'name', '', 'url', url, 'events', events, 'secrets', secrets, 'created_ms',
    now, 'updated_ms', now, 'hidden', 1)
elseif redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  redis.call('HDEL', endpoint, 'disabled_ms', 'disabled_reason', 'failing_ms')
end
redis.call('PEXPIRE', endpoint, life_ms)
return 1
