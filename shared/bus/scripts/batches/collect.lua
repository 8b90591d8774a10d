#!lua flags=allow-oom
-- collect: the records of some lines stand in a segment.
-- Invariant: a segment's number is the next, its lines are counted once, and with it all else that is kept of them goes.
-- Lines that will not be fed any more may be recorded too, next in the plan: then the cursor moves behind them.
-- What of these lies in a store is named in the reply, for who deletes it there.
-- uses: attention references
local batch, segments, flights, ended, refused = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local prefix, token, number, segment = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local n_completed, n_failed = tonumber(ARGV[5]), tonumber(ARGV[6])
local n_unfed, from, to = tonumber(ARGV[7]), ARGV[8], ARGV[9] -- lines without a flight, and where in the plan they are
local USAGE, USED = {'input_tokens', 'cached_tokens', 'output_tokens', 'reasoning_tokens'}, 9 -- in ARGV behind that one
local FIRST = 14 -- then the ids of the others' jobs, some hundreds
local n_jobs = #ARGV - FIRST + 1

if not is_held(batch, token) then
  return {'lost'}
end
local status, until_ms, n_segments, n_fed, offset, completed, failed, in_flight = unpack(redis.call(
  'HMGET', batch, 'status', 'until_ms', 'n_segments', 'n_fed', 'plan_offset', 'n_completed', 'n_failed',
  'n_in_flight'))
n_segments = tonumber(n_segments)
if number == n_segments - 1 and redis.call('LINDEX', segments, -1) == segment then
  return {'ok'} -- said again because our reply was lost
elseif number ~= n_segments then
  return {'lost'}
end
-- From here on: what is not as it was said was so once, and the server has lost its last second.
if n_unfed > 0 and (offset ~= from or (status ~= 'finalizing' and status ~= 'cancelling')) then
  return {'lost'}
end

-- With one command for all lines wherever there is one. What of them lies in a store; nil: some cannot be collected.
local function forget_lines()
  local has_ended = redis.call('ZMSCORE', ended, unpack(ARGV, FIRST))
  for i, place in ipairs(redis.call('ZMSCORE', flights, unpack(ARGV, FIRST))) do
    local is_at_work = not has_ended[i] and redis.call('EXISTS', prefix .. 'job:' .. ARGV[FIRST + i - 1]) == 1
    if not place or is_at_work then
      return nil
    end
  end
  local names, objects = {}, {}
  for i = FIRST, #ARGV do
    local job = prefix .. 'job:' .. ARGV[i]
    for _, reference in ipairs(references_of(job)) do
      objects[#objects + 1] = reference
    end
    names[2 * (i - FIRST) + 1], names[2 * (i - FIRST) + 2] = job, prefix .. 'log:' .. ARGV[i]
  end
  redis.call('UNLINK', unpack(names))
  redis.call('ZREM', flights, unpack(ARGV, FIRST))
  redis.call('ZREM', ended, unpack(ARGV, FIRST))
  redis.call('HDEL', refused, unpack(ARGV, FIRST))
  return objects
end

local objects = {}
if n_jobs > 0 then
  objects = forget_lines()
  if not objects then
    return {'lost'}
  end
end
redis.call('RPUSH', segments, segment)
redis.call('PEXPIREAT', segments, until_ms, 'NX')
local counts = {
  'n_segments', n_segments + 1, 'n_fed', n_fed + n_unfed, 'n_completed', completed + n_completed, 'n_failed',
  failed + n_failed, 'n_in_flight', in_flight - n_jobs}
for i, used in ipairs(redis.call('HMGET', batch, unpack(USAGE))) do
  counts[#counts + 1], counts[#counts + 2] = USAGE[i], used + ARGV[USED + i]
end
if n_unfed > 0 then
  counts[#counts + 1], counts[#counts + 2] = 'plan_offset', to
end
redis.call('HSET', batch, unpack(counts))
return {'ok', unpack(objects)}
