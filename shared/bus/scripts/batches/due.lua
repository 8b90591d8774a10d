#!lua flags=allow-oom
-- due: the batches that somebody should look at, those that wait longest first.
-- Invariant: it changes no batch; what is no batch any more is not named again.
-- uses: clock
local attention = KEYS[1]
local prefix, most = ARGV[1], ARGV[2]

local due = {}
local found = redis.call('ZRANGEBYSCORE', attention, '-inf', clock(), 'WITHSCORES', 'LIMIT', 0, most)
for i = 1, #found, 2 do
  local epoch = redis.call('HGET', prefix .. 'batch:' .. found[i], 'epoch')
  if epoch then
    due[#due + 1] = {found[i], tonumber(epoch), found[i + 1]}
  else
    redis.call('ZREM', attention, found[i])
  end
end
return due
