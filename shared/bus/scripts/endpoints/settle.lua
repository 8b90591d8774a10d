#!lua flags=allow-oom
-- settle: some of the deliveries of an endpoint that takes none are settled.
-- Invariant: of one that is gone they are dropped, of a disabled one they are given up, so that a replay recovers them.
-- Of any other, nothing changes. Returns how many may be left.
-- uses: clock delivery
local endpoint = KEYS[1]
local prefix, id, keep_ms, reason = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local AT_ONCE = 100 -- a script makes everybody wait

local function drop_some()
  for _, status in ipairs({'pending', 'delivered', 'failed'}) do
    local list = list_of(prefix, id, status)
    local dropped = redis.call('ZRANGE', list, 0, AT_ONCE - 1)
    for _, delivery in ipairs(dropped) do
      redis.call('DEL', prefix .. 'delivery:' .. delivery)
    end
    if dropped[1] then
      redis.call('ZREM', list, unpack(dropped))
      if status == 'pending' then
        redis.call('ZREM', prefix .. 'schedule:' .. id, unpack(dropped))
      end
      return #dropped
    end
  end
  redis.call('DEL', prefix .. 'schedule:' .. id)
  redis.call('ZREM', prefix .. 'schedules', id)
  return 0
end

local function fail_some()
  local now, waiting = clock(), redis.call('ZRANGE', prefix .. 'schedule:' .. id, 0, AT_ONCE - 1)
  for _, delivery in ipairs(waiting) do
    if redis.call('EXISTS', prefix .. 'delivery:' .. delivery) == 1 then
      end_delivery(prefix, id, delivery, 'failed', now, keep_ms, reason)
    else
      redis.call('ZREM', prefix .. 'schedule:' .. id, delivery)
      redis.call('ZREM', list_of(prefix, id, 'pending'), delivery)
    end
  end
  if #waiting < AT_ONCE then
    announce(prefix, id)
    keep_hidden(prefix, id, keep_ms)
  end
  return #waiting
end

if redis.call('EXISTS', endpoint) == 0 then
  return drop_some()
elseif redis.call('HEXISTS', endpoint, 'disabled_ms') == 1 then
  return fail_some()
end
return 0
