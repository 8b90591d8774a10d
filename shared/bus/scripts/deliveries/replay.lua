#!lua
-- replay: deliveries are sent again from the start, with the ids and bytes that they have.
-- Invariant: only those of an endpoint that takes any; who asks for them ends its rest. Returns how many are due now;
-- none when it is disabled or gone.
-- uses: clock delivery
local endpoint = KEYS[1]
local prefix, endpoint_id, keep_ms, ids = ARGV[1], ARGV[2], tonumber(ARGV[3]), {unpack(ARGV, 4)}

if redis.call('EXISTS', endpoint) == 0 or redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  return 0
end
redis.call('HDEL', endpoint, 'rest_ms')
local now, count = clock(), 0
for _, id in ipairs(ids) do
  local delivery = prefix .. 'delivery:' .. id
  if redis.call('HGET', delivery, 'endpoint') == endpoint_id then
    redis.call('HSET', delivery, 'n_attempts', 0)
    schedule_delivery(prefix, endpoint_id, id, now)
    count = count + 1
  end
end
announce(prefix, endpoint_id)
keep_hidden(prefix, endpoint_id, keep_ms)
return count
