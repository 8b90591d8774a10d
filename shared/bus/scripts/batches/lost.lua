#!lua flags=allow-oom
-- lost: lines in flight whose jobs have vanished, so that they will never end.
-- Invariant: it changes nothing, but for a line that has ended and did not say so, to a program that knew no batches:
-- that can be collected from here on.
-- uses: clock lines
local flights, ended = KEYS[1], KEYS[2]
local prefix, batch_id, first, count = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

local now = clock()
local lost = {}
local ids = redis.call('ZRANGE', flights, first, first + count - 1)
for _, id in ipairs(ids) do
  local status = redis.call('HGET', prefix .. 'job:' .. id, 'status')
  if status ~= 'queued' and status ~= 'running' and not redis.call('ZSCORE', ended, id) then
    if status then
      end_line(prefix, batch_id, id, now)
    else
      lost[#lost + 1] = id
    end
  end
end
return {#ids, lost}
