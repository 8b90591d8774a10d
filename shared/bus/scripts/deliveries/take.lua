#!lua flags=allow-oom
-- take: the deliveries of an endpoint whose time has come.
-- Invariant: what is there is left as it is; only what has gone by itself is no longer waited for. Returns whether the
-- endpoint takes any, and their ids; none while it rests.
-- uses: clock delivery
local endpoint, schedule = KEYS[1], KEYS[2]
local prefix, id, limit = ARGV[1], ARGV[2], tonumber(ARGV[3])

if redis.call('EXISTS', endpoint) == 0 or redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  return {0, {}}
end
local now, due = clock(), {}
if tonumber(redis.call('HGET', endpoint, 'rest_ms') or 0) > now then
  return {1, due}
end
for _, delivery in ipairs(redis.call('ZRANGEBYSCORE', schedule, '-inf', now, 'LIMIT', 0, limit)) do
  if redis.call('EXISTS', prefix .. 'delivery:' .. delivery) == 1 then
    due[#due + 1] = delivery
  else
    redis.call('ZREM', schedule, delivery)
    redis.call('ZREM', list_of(prefix, id, 'pending'), delivery)
  end
end
if #due == 0 then
  announce(prefix, id)
end
return {1, due}
