#!lua flags=allow-oom
-- attempted: how a try went.
-- Invariant: each is logged once, of a delivery that is there. What was delivered stays so; what was given up is not
-- pending again without a replay. An endpoint fails from its first failure after a success on.
-- uses: clock delivery
local endpoint, delivery = KEYS[1], KEYS[2]
local prefix, endpoint_id, id = ARGV[1], ARGV[2], ARGV[3]
local attempt, status, after_ms, keep_ms, most = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local why_disabled = ARGV[9]

local was, owner, n_logged = unpack(redis.call('HMGET', delivery, 'status', 'endpoint', 'n_logged'))
if not was or owner ~= endpoint_id or redis.call('EXISTS', endpoint) == 0 then
  return 0
end
if redis.call('HGET', delivery, 'attempt:' .. n_logged) == attempt then
  return 1 -- said again because our reply was lost
end
local number = redis.call('HINCRBY', delivery, 'n_logged', 1)
redis.call('HINCRBY', delivery, 'n_attempts', 1)
redis.call('HSET', delivery, 'attempt:' .. number, attempt)
redis.call('HDEL', delivery, 'attempt:' .. number - most)

local now = clock()
if status == 'delivered' then
  redis.call('HDEL', endpoint, 'failing_ms')
else
  redis.call('HSETNX', endpoint, 'failing_ms', now)
end
if status == 'delivered' or (status == 'failed' and was == 'pending') then
  end_delivery(prefix, endpoint_id, id, status, now, keep_ms)
elseif was == 'pending' and redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  end_delivery(prefix, endpoint_id, id, 'failed', now, keep_ms, why_disabled)
elseif was == 'pending' then
  schedule_delivery(prefix, endpoint_id, id, now + after_ms)
end
announce(prefix, endpoint_id)
keep_hidden(prefix, endpoint_id, keep_ms)
return 1
