#!lua flags=no-writes
-- overdue: batches of which something in the store may belong to nobody, and whether their files are there.
-- Invariant: it changes nothing.
-- uses: clock
local remains = KEYS[1]
local most = tonumber(ARGV[1])
return redis.call('ZRANGEBYSCORE', remains, '-inf', clock(), 'LIMIT', 0, most)
