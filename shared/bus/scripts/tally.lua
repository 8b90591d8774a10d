#!lua flags=allow-oom
-- tally: what a worker has done since its start becomes part of its model's totals.
-- Invariant: the totals are the sum of what each worker has said last, however often it said so, and never shrink.
-- uses: clock
local totals = KEYS[1]
local worker, done, longest, kept_s = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local said, said_at = 'said:' .. worker, 'at:' .. worker
local now = clock()

redis.call('EXPIRE', totals, kept_s)
local before = redis.call('HGET', totals, said)
if before == done then
  -- Idle, and alive: said now and then, so that it is not taken for one of long ago.
  if now - (redis.call('HGET', totals, said_at) or 0) > kept_s * 250 then
    redis.call('HSET', totals, said_at, now)
  end
  return 0
end
if not before then
  -- Those before it that have not been heard for as long as results are kept: their part in the totals stays.
  local fields = redis.call('HGETALL', totals)
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 3) == 'at:' and now - fields[i + 1] > kept_s * 1000 then
      redis.call('HDEL', totals, fields[i], 'said:' .. string.sub(fields[i], 4))
    end
  end
end
local earlier = before and cjson.decode(before) or {}
for name, count in pairs(cjson.decode(done)) do
  local more = count - (earlier[name] or 0)
  if more > 0 then
    redis.call('HINCRBYFLOAT', totals, name, string.format('%.17g', more))
  end
end
if longest > tonumber(redis.call('HGET', totals, 'n_tokens_most') or 0) then
  redis.call('HSET', totals, 'n_tokens_most', longest)
end
redis.call('HSET', totals, said, done, said_at, now)
redis.call('EXPIRE', totals, kept_s)
return 1
