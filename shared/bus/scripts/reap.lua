#!lua flags=allow-oom
-- reap: ends overdue jobs that nobody holds, and clears away what is empty.
-- Invariant: what a living worker holds is left to it; a consumer is dropped only when nothing is delivered to it, for
-- its entries would never be delivered again.
-- uses: clock ending putback orphans holder
local due, lanes = KEYS[1], KEYS[2]
local prefix, lease_ms = ARGV[1], tonumber(ARGV[2])
local MOST = 100 -- jobs in one call: a script makes everybody wait
local SILENCE_MS = math.max(600000, 10 * lease_ms) -- after which a consumer is gone

local now = clock()

local function end_overdue()
  local ended, overdue = 0, redis.call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, MOST)
  for _, id in ipairs(overdue) do
    local status, stream, entry = unpack(
      redis.call('HMGET', prefix .. 'job:' .. id, 'status', 'stream', 'entry'))
    if not status then
      redis.call('ZREM', due, id)
    elseif status == 'running' and has_holder(stream, entry, lease_ms) then
      redis.call('ZADD', due, now + lease_ms, id)
    else
      end_job(prefix, id, now, 'expired', without_answer('expired', 'expired', 'The deadline passed.'))
      ended = ended + 1
    end
  end
  return ended, #overdue
end

-- What follows a name in a flat reply.
local function named(reply, name)
  for i = 1, #reply, 2 do
    if reply[i] == name then
      return reply[i + 1]
    end
  end
end

local function drop_silent_consumers(stream)
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', stream, 'workers')) do
    if named(consumer, 'pending') == 0 and named(consumer, 'idle') > SILENCE_MS then
      redis.call('XGROUP', 'DELCONSUMER', stream, 'workers', named(consumer, 'name'))
    end
  end
end

-- Entries of jobs that ended while they waited, as far as they are first in line. They are delivered before they are
-- deleted: to delete an undelivered entry would make the group's lag unknown.
local function drop_ended_heads(stream, load, lane, tenant)
  local last = named(redis.call('XINFO', 'GROUPS', stream)[1], 'last-delivered-id')
  for _, entry in ipairs(redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', MOST)) do
    local status = redis.call('HGET', prefix .. 'job:' .. (entry[2][2] or ''), 'status')
    if status == 'queued' or status == 'running' then
      break
    end
    redis.call('XREADGROUP', 'GROUP', 'workers', '@reaper', 'COUNT', 1, 'STREAMS', stream, '>')
    redis.call('XACK', stream, 'workers', entry[1])
    redis.call('XDEL', stream, entry[1])
    redis.call('HINCRBY', load, 'taken:' .. lane .. ':' .. tenant, 1)
  end
end

local function tidy_tenant(model, lane, tenant)
  local stream, load = prefix .. 'q:' .. model .. ':' .. lane .. ':' .. tenant, prefix .. 'load:' .. model
  if redis.call('EXISTS', stream) == 1 then
    redis.pcall('XGROUP', 'CREATE', stream, 'workers', 0) -- an error: there is one
    drop_ended_heads(stream, load, lane, tenant)
    drop_silent_consumers(stream)
  end
  if redis.call('XLEN', stream) == 0 then
    local of = ':' .. lane .. ':' .. tenant
    redis.call('DEL', stream)
    redis.call('ZREM', prefix .. 'turn:' .. model .. ':' .. lane, tenant)
    redis.call('HDEL', load, 'queued' .. of, 'added' .. of, 'taken' .. of)
  end
end

-- Of work for single workers: what is for those that are gone is settled, and who has no work is no longer listed.
local function tidy_own(model)
  local owners, load = prefix .. 'owners:' .. model, prefix .. 'load:' .. model
  settle_orphans(prefix, model, nil, now, lease_ms)
  for _, owner in ipairs(redis.call('SMEMBERS', owners)) do
    local stream = prefix .. 'q:@' .. owner
    if redis.call('XLEN', stream) == 0 then
      redis.call('DEL', stream)
      redis.call('SREM', owners, owner)
    end
  end
  if redis.call('EXISTS', owners) == 0 then
    redis.call('SREM', lanes, model .. ':own')
    for _, count in ipairs(redis.call('HKEYS', load)) do
      if string.match(count, '^queued:own') or string.match(count, '^added:own:') then
        redis.call('HDEL', load, count)
      end
    end
  end
end

local function tidy_lane(member)
  local model, lane = string.match(member, '^(.*):(.*)$')
  if lane == 'own' then
    return tidy_own(model)
  end
  local turn = prefix .. 'turn:' .. model .. ':' .. lane
  for _, tenant in ipairs(redis.call('ZRANGE', turn, 0, -1)) do
    tidy_tenant(model, lane, tenant)
  end
  if redis.call('EXISTS', turn) == 0 then
    redis.call('SREM', lanes, member)
    redis.call('HDEL', prefix .. 'load:' .. model, 'queued:' .. lane)
  end
end

local function forget_silent_workers()
  local beats = prefix .. 'beats'
  local heard = redis.call('HGETALL', beats)
  for i = 1, #heard, 2 do
    if string.sub(heard[i], 1, 1) ~= '@' and now - heard[i + 1] > SILENCE_MS then
      redis.call('HDEL', beats, heard[i])
    end
  end
end

local ended, looked_at = end_overdue()
if looked_at == MOST then
  return {ended, 1} -- tidied once, after the last of them
end
forget_silent_workers()
for _, member in ipairs(redis.call('SMEMBERS', lanes)) do
  tidy_lane(member)
end
return {ended, 0}
