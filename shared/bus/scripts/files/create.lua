#!lua
-- create: a file whose bytes are in the store becomes known.
-- Invariant: that of `filing`. Refused when memory is full: then its bytes go again.
-- uses: clock filing
local file = KEYS[1]
local prefix, id, tenant, record, life_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

file_record(prefix, id, tenant, record, clock(), life_ms)
return redis.call('HMGET', file, 'record', 'created_ms', 'expires_ms')
