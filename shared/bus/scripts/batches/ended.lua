#!lua flags=no-writes
-- ended: lines of a batch that can be collected, those that ended first in front.
-- Invariant: it changes nothing. A line has a status or what it was refused with, or neither, when its job has vanished.
local ended, refused = KEYS[1], KEYS[2]
local prefix, most = ARGV[1], tonumber(ARGV[2])

local rows = {}
for _, id in ipairs(redis.call('ZRANGE', ended, 0, most - 1)) do
  rows[#rows + 1] = {
    id, redis.call('HGET', prefix .. 'job:' .. id, 'status'), redis.call('HGET', refused, id)}
end
return rows
