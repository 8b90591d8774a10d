#!lua flags=allow-oom
-- delete: somebody no longer wants a file.
-- Invariant: from now on nobody is told of it, and it is due to go: its record stays until its bytes have gone, or they
-- would stay for ever. Who deletes it is told so once, however often he says it.
-- uses: clock
local file, index, due = KEYS[1], KEYS[2], KEYS[3]
local id, who = ARGV[1], ARGV[2]

local record, created_ms, expires_ms, deleted_by = unpack(
  redis.call('HMGET', file, 'record', 'created_ms', 'expires_ms', 'deleted_by'))
if record and deleted_by == who then
  return {record, created_ms, expires_ms}
elseif not record or tonumber(expires_ms) <= clock() then
  return {}
end
redis.call('HSET', file, 'expires_ms', 0, 'deleted_by', who)
redis.call('ZREM', index, id)
redis.call('ZADD', due, 0, id)
return {record, created_ms, 0}
