#!lua flags=allow-oom
-- due: the batches that somebody should look at, those that wait longest first.
-- Invariant: it changes no batch; what is no batch any more is not named again.
-- uses: clock attention
local attention = KEYS[1]
local prefix, most = ARGV[1], ARGV[2]

local now = clock()
local due = {}

-- `found`: ids, each with its time.
local function take(found)
  for i = 1, #found, 2 do
    local epoch = redis.call('HGET', prefix .. 'batch:' .. found[i], 'epoch')
    if epoch then
      due[#due + 1] = {found[i], tonumber(epoch), found[i + 1]}
    else
      redis.call('ZREM', attention, found[i])
    end
  end
end

take(redis.call('ZRANGEBYSCORE', attention, '-inf', now, 'WITHSCORES', 'LIMIT', 0, most))
-- What `is_past` finds too far ahead.
take(redis.call(
  'ZRANGEBYSCORE', attention, string.format('(%d', now + FURTHEST_MS), '+inf', 'WITHSCORES', 'LIMIT', 0, most))
return due
