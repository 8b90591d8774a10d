#!lua flags=allow-oom
-- due: files whose bytes are to go.
-- Invariant: each is told of until it is dropped; what has no record any more is dropped here.
-- uses: clock
local due = KEYS[1]
local prefix, most = ARGV[1], ARGV[2]

local rows = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', clock(), 'LIMIT', 0, most)) do
  local record, created_ms, expires_ms = unpack(
    redis.call('HMGET', prefix .. 'file:' .. id, 'record', 'created_ms', 'expires_ms'))
  if record then
    rows[#rows + 1] = {record, created_ms, expires_ms}
  else
    redis.call('ZREM', due, id)
  end
end
return rows
