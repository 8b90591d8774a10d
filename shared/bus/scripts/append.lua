#!lua flags=allow-oom
-- append: one chunk into a job's token log, if the lease still holds.
-- Invariant: an entry is in the log only if its writer held the lease when it was written, and event numbers run on
-- without a gap and without a double, over all attempts.
local job, log = KEYS[1], KEYS[2]
local live, lease, epoch = ARGV[1], ARGV[2], ARGV[3]
local first, n, events = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] -- n events, a JSON list
local accepted, progress = ARGV[7], ARGV[8] -- JSON, or empty

local held, status, written, cancel = unpack(redis.call('HMGET', job, 'lease', 'status', 'events', 'cancel'))
if held ~= lease or status ~= 'running' or first > written + 1 then
  return 'lost' -- a gap: the server has forgotten what was acknowledged; the next attempt goes on from what it knows
elseif n > 0 and first <= tonumber(written) and first + n - 1 > tonumber(written) then
  return 'lost' -- half of it is there: not what was said before, so whoever says it has lost count
end

local said = {}
if accepted ~= '' then
  redis.call('HSET', job, 'accepted', accepted)
  said[#said + 1] = '"accepted":' .. accepted
end
if progress ~= '' then
  said[#said + 1] = '"progress":' .. progress
end
-- Else it was written already, and the reply was lost.
if n > 0 and first > tonumber(written) then
  local id = epoch .. '-' .. first
  redis.call('XADD', log, id, 'n', n, 'e', events)
  redis.call('HINCRBY', job, 'events', n)
  said[#said + 1] = '"id":"' .. id .. '","n":' .. n .. ',"events":' .. events
end
if #said > 0 then
  redis.call('PUBLISH', live, '{' .. table.concat(said, ',') .. '}')
end
return cancel and 'cancel' or 'ok'
