-- Where a delivery stands.
-- Invariant: it is in exactly one of its endpoint's lists, that of its status; in its endpoint's schedule if and only
-- if it is pending; and its endpoint stands in `schedules` at the time of the first that is, or of the end of its rest,
-- and of a disabled one at any time. What is pending goes by itself only when nobody has looked for PENDING_MS; what has
-- ended goes `keep_ms` later, or when KEPT others of its status are younger.
local PENDING_MS = 2592000000 -- thirty days
local KEPT = 10000
local TRIMMED_AT_ONCE = 3 -- at each that comes: lists shrink when they must, and no call takes long

local function list_of(prefix, endpoint, status)
  return prefix .. 'deliveries:' .. endpoint .. ':' .. status
end

-- A key of many deliveries lives as long as the longest of them.
local function keep_for(key, ms)
  redis.call('PEXPIRE', key, ms, 'NX')
  redis.call('PEXPIRE', key, ms, 'GT')
end

-- After every change of an endpoint's schedule or rest.
local function announce(prefix, endpoint)
  local schedules = prefix .. 'schedules'
  local first = redis.call('ZRANGE', prefix .. 'schedule:' .. endpoint, 0, 0, 'WITHSCORES')
  if first[1] then
    local rests, is_disabled = unpack(redis.call('HMGET', prefix .. 'endpoint:' .. endpoint, 'rest_ms', 'disabled_ms'))
    redis.call('ZADD', schedules, is_disabled and 0 or math.max(first[2], rests or 0), endpoint)
    keep_for(schedules, PENDING_MS)
  else
    redis.call('ZREM', schedules, endpoint)
  end
end

local function trim(prefix, list)
  local excess = redis.call('ZCARD', list) - KEPT
  for place, id in ipairs(redis.call('ZRANGE', list, 0, TRIMMED_AT_ONCE - 1)) do
    local delivery = prefix .. 'delivery:' .. id
    if place <= excess then
      redis.call('DEL', delivery)
    end
    if redis.call('EXISTS', delivery) == 0 then
      redis.call('ZREM', list, id)
    end
  end
end

-- A delivery that exists is due at `at`, and then until it ends. The caller announces.
local function schedule_delivery(prefix, endpoint, id, at)
  local delivery = prefix .. 'delivery:' .. id
  local was, created = unpack(redis.call('HMGET', delivery, 'status', 'created_ms'))
  local pending, schedule = list_of(prefix, endpoint, 'pending'), prefix .. 'schedule:' .. endpoint
  redis.call('ZREM', list_of(prefix, endpoint, was), id)
  redis.call('ZADD', pending, created, id)
  redis.call('ZADD', schedule, at, id)
  redis.call('HSET', delivery, 'status', 'pending', 'next_ms', at)
  redis.call('HDEL', delivery, 'ended_ms', 'reason')
  redis.call('PEXPIRE', delivery, PENDING_MS)
  keep_for(pending, PENDING_MS)
  keep_for(schedule, PENDING_MS)
end

-- A delivery that exists is over. The caller announces.
local function end_delivery(prefix, endpoint, id, status, now, keep_ms, reason)
  local delivery, list = prefix .. 'delivery:' .. id, list_of(prefix, endpoint, status)
  local was, created = unpack(redis.call('HMGET', delivery, 'status', 'created_ms'))
  redis.call('ZREM', list_of(prefix, endpoint, was), id)
  redis.call('ZREM', prefix .. 'schedule:' .. endpoint, id)
  redis.call('ZADD', list, created, id)
  redis.call('HSET', delivery, 'status', status, 'ended_ms', now)
  redis.call('HDEL', delivery, 'next_ms', 'reason')
  if reason then
    redis.call('HSET', delivery, 'reason', reason)
  end
  redis.call('PEXPIRE', delivery, keep_ms)
  keep_for(list, keep_ms)
  trim(prefix, list)
end

-- An endpoint that nobody made by name lives as long as what is kept of its deliveries.
local function keep_hidden(prefix, endpoint, keep_ms)
  local key = prefix .. 'endpoint:' .. endpoint
  if redis.call('HGET', key, 'hidden') == '1' then
    local is_waiting = redis.call('EXISTS', prefix .. 'schedule:' .. endpoint) == 1
    redis.call('PEXPIRE', key, is_waiting and PENDING_MS or keep_ms)
  end
end
