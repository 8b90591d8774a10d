#!lua
-- create: a batch, or the one that was made before.
-- Invariant: a batch's hash, its place in its tenant's list and the time at which it is looked at come into being
-- together, once for an id and once for an idempotency key. All of it goes by itself, should nobody ever look.
-- uses: clock batchend
local batch, index, attention, remains, made_of = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local idem = KEYS[6] -- only with an idempotency key
local id, tenant, given, window_ms, keep_ms = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local fingerprint, repeats = ARGV[6], ARGV[7] == '1' -- a fingerprint may be empty, and then the batch is like no other
local REPEATED_MS = 600000 -- that a client goes on trying

local batches = string.sub(batch, 1, -#id - 1)

if redis.call('EXISTS', batch) == 1 then
  return {'new', id} -- said again because our reply was lost
end
if idem then
  local owner, of = string.match(redis.call('GET', idem) or '', '^(%S+) (%S*)$')
  -- A batch that is gone has set its key free.
  if owner and redis.call('EXISTS', batches .. owner) == 1 then
    return {of == fingerprint and 'known' or 'conflict', owner}
  end
end
if repeats and fingerprint ~= '' then
  local earlier = redis.call('GET', made_of)
  if earlier and redis.call('EXISTS', batches .. earlier) == 1 then
    return {'known', earlier}
  end
end

local now = clock()
local expires = now + window_ms
local until_ms = expires + keep_ms
redis.call(
  'HSET', batch, 'given', given, 'tenant', tenant, 'status', 'validating', 'created_ms', now, 'expires_ms', expires, 'until_ms',
  until_ms, 'epoch', 0, 'n_total', 0, 'n_planned', 0, 'n_fed', 0, 'plan_offset', 0, 'n_in_flight', 0, 'n_completed', 0,
  'n_failed', 0, 'input_tokens', 0, 'cached_tokens', 0, 'output_tokens', 0, 'reasoning_tokens', 0, 'n_segments', 0)
redis.call('PEXPIREAT', batch, until_ms)
redis.call('ZADD', attention, now, id)
keep_until(attention, until_ms)
redis.call('ZADD', remains, until_ms, id)
keep_until(remains, until_ms + keep_ms)
if idem then
  redis.call('SET', idem, id .. ' ' .. fingerprint, 'PXAT', until_ms)
end
if fingerprint ~= '' then
  redis.call('SET', made_of, id, 'PX', REPEATED_MS)
end

redis.call('ZADD', index, now, id)
keep_until(index, until_ms)
-- Each comer takes some of the gone along, so that the index stays as long as the list of batches.
for _, other in ipairs(redis.call('ZRANDMEMBER', index, 3)) do
  if redis.call('EXISTS', batches .. other) == 0 then
    redis.call('ZREM', index, other)
  end
end
return {'new', id}
