#!lua flags=no-writes
-- lost: lines in flight whose jobs have vanished, so that they will never end.
-- Invariant: it changes nothing.
local flights, ended = KEYS[1], KEYS[2]
local prefix, first, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local lost = {}
local ids = redis.call('ZRANGE', flights, first, first + count - 1)
for _, id in ipairs(ids) do
  if redis.call('EXISTS', prefix .. 'job:' .. id) == 0 and not redis.call('ZSCORE', ended, id) then
    lost[#lost + 1] = id
  end
end
return {#ids, lost}
