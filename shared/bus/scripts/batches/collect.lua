#!lua flags=allow-oom
-- collect: the records of some lines stand in a segment.
-- Invariant: a segment's number is the next, its lines are counted once, and with it all else that is kept of them goes.
-- Lines that will not be fed any more may be recorded too, next in the plan: then the cursor moves behind them.
-- What of these lies in a store is named in the reply, for who deletes it there.
-- uses: attention references
local batch, segments, flights, ended, refused = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, token, number, segment = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local n_completed, n_failed = tonumber(ARGV[5]), tonumber(ARGV[6])
local n_unfed, to = tonumber(ARGV[7]), tonumber(ARGV[8]) -- lines without a flight, and where the last of them ends
local USAGE = {'input_tokens', 'cached_tokens', 'output_tokens', 'reasoning_tokens'} -- ARGV[9] to [12]
local FIRST = 13 -- then the ids of the others' jobs
local n_jobs = #ARGV - FIRST + 1

if not is_held(batch, token) then
  return {'lost'}
end
local status, n_segments, until_ms, n_fed, n_planned = unpack(
  redis.call('HMGET', batch, 'status', 'n_segments', 'until_ms', 'n_fed', 'n_planned'))
n_segments = tonumber(n_segments)
if number == n_segments - 1 and redis.call('LINDEX', segments, -1) == segment then
  return {'ok'} -- said again because our reply was lost
elseif number ~= n_segments then
  return {'lost'}
end
if n_completed + n_failed ~= n_jobs + n_unfed or n_jobs + n_unfed == 0 or n_fed + n_unfed > tonumber(n_planned)
  or (n_unfed > 0 and status ~= 'finalizing' and status ~= 'cancelling') then
  return {'wrong'}
end
for i = FIRST, #ARGV do
  local id = ARGV[i]
  if not redis.call('ZSCORE', flights, id) then
    return {'lost'} -- the server has forgotten that it was fed, so it will be again
  elseif not redis.call('ZSCORE', ended, id) and redis.call('EXISTS', prefix .. 'job:' .. id) == 1 then
    return {'wrong'} -- it is at work
  end
end

redis.call('RPUSH', segments, segment)
redis.call('PEXPIREAT', segments, until_ms, 'NX')
redis.call('HSET', batch, 'n_segments', n_segments + 1)
redis.call('HINCRBY', batch, 'n_completed', n_completed)
redis.call('HINCRBY', batch, 'n_failed', n_failed)
for i, name in ipairs(USAGE) do
  redis.call('HINCRBY', batch, name, ARGV[8 + i])
end
if n_unfed > 0 then
  redis.call('HSET', batch, 'n_fed', n_fed + n_unfed, 'plan_offset', to)
end
if n_jobs > 0 then
  redis.call('HINCRBY', batch, 'n_in_flight', -n_jobs)
end
local reply = {'ok'}
for i = FIRST, #ARGV do
  local id = ARGV[i]
  for _, reference in ipairs(references_of(prefix .. 'job:' .. id)) do
    reply[#reply + 1] = reference
  end
  redis.call('UNLINK', prefix .. 'job:' .. id, prefix .. 'log:' .. id)
  redis.call('ZREM', prefix .. 'due', id)
  redis.call('ZREM', flights, id)
  redis.call('ZREM', ended, id)
  redis.call('HDEL', refused, id)
end
return reply
