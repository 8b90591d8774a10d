#!lua flags=no-writes
-- read: what is known of a file.
-- Invariant: nothing is, from the moment at which it was deleted or its time is over, whatever is left of it.
-- uses: clock
local record, created_ms, expires_ms = unpack(
  redis.call('HMGET', KEYS[1], 'record', 'created_ms', 'expires_ms'))

if record and tonumber(expires_ms) > clock() then
  return {record, created_ms, expires_ms}
end
return {}
