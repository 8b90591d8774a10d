#!lua flags=allow-oom
-- forget: somebody no longer wants what is kept of a job.
-- Invariant: only of one that has ended, and is no line that its batch has yet to collect; its hash, its log and its place in its tenant's list go together. What of it
-- lies in a store is named in the reply, for who deletes it there.
-- uses: references
local job, log, index = KEYS[1], KEYS[2], KEYS[3]
local id = ARGV[1]

local status, batch = unpack(redis.call('HMGET', job, 'status', 'batch'))
if status == 'queued' or status == 'running' or batch then
  return {0}
end
local reply = {1}
for _, reference in ipairs(references_of(job)) do
  reply[#reply + 1] = reference
end
redis.call('DEL', job, log)
redis.call('ZREM', index, id)
return reply
