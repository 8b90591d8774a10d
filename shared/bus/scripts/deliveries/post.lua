#!lua flags=allow-oom
-- post: an event goes on its way to an endpoint.
-- Invariant: once, however often it is said; to an endpoint that is there. To a disabled one it is given up at once, so
-- that a replay recovers it. Taken when memory is full, since what it tells of has happened.
-- uses: clock delivery
local endpoint, delivery = KEYS[1], KEYS[2]
local prefix, endpoint_id, id = ARGV[1], ARGV[2], ARGV[3]
local event, event_type, body, keep_ms, reason = ARGV[4], ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]

if redis.call('EXISTS', endpoint) == 0 or redis.call('EXISTS', delivery) == 1 then
  return 0
end
local now = clock()
redis.call(
  'HSET', delivery, 'endpoint', endpoint_id, 'event', event, 'type', event_type, 'body', body, 'created_ms', now,
  'status', 'pending', 'n_attempts', 0, 'n_logged', 0)
if redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  end_delivery(prefix, endpoint_id, id, 'failed', now, keep_ms, reason)
else
  schedule_delivery(prefix, endpoint_id, id, now)
end
announce(prefix, endpoint_id)
keep_hidden(prefix, endpoint_id, keep_ms)
return 1
