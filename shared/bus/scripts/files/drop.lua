#!lua flags=allow-oom
-- drop: the bytes of a file are gone, and so is the rest.
-- Invariant: only of one that nobody is told of any more.
-- uses: clock
local file, index, due = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

local expires_ms = redis.call('HGET', file, 'expires_ms')
if expires_ms and tonumber(expires_ms) > clock() then
  return 0
end
redis.call('DEL', file)
redis.call('ZREM', index, id)
redis.call('ZREM', due, id)
return 1
