#!lua
-- refuse: a line of a batch that can be no job goes on its way all the same, with what is to be said of it.
-- Invariant: as of `enqueue`: the cursor is behind the line, and the line can be collected.
-- uses: clock lines
local batch = KEYS[1]
local prefix, batch_id, id, token = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local from, to, why = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

local now = clock()
local known, not_now = next_in_plan(batch, token, from, to, now)
if not known then
  return {not_now, id}
end
leave_plan(batch, known, id, from, to)
redis.call('HSET', batch .. ':refused', id, why)
redis.call('PEXPIREAT', batch .. ':refused', known.until_ms, 'NX')
end_line(prefix, batch_id, id, now)
return {'new', id}
