#!lua flags=allow-oom
-- due: endpoints that have deliveries whose time has come.
-- Invariant: it changes nothing. With `turn` growing, each of them is named as often as any other, however many there
-- are and however long some of them have been due.
-- uses: clock
local schedules = KEYS[1]
local limit, turn = tonumber(ARGV[1]), tonumber(ARGV[2])

local now = clock()
local total = redis.call('ZCOUNT', schedules, '-inf', now)
if total <= limit then
  return redis.call('ZRANGEBYSCORE', schedules, '-inf', now)
end
local start = turn % total
local due = redis.call('ZRANGEBYSCORE', schedules, '-inf', now, 'LIMIT', start, limit)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', schedules, '-inf', now, 'LIMIT', 0, limit - #due)) do
  due[#due + 1] = id
end
return due
