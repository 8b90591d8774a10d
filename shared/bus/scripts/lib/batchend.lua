-- The one way in which a batch ends.
-- Invariant: a batch ends once; then nobody holds it or looks at it, it has one outbox row, and all that is kept of it
-- has its time. What of it is in the store and belongs to no file is in `remains` until somebody has deleted it.
-- uses: outbox

local REMAINS_MS = 600000 -- a holder that was held up may still write an object; and a plan is what a retry is made of
local CLEARING_MS = 30 * 86400000 -- that may pass until somebody clears it away

-- A key of many batches lives as long as the longest of them.
local function keep_until(key, ms)
  redis.call('PEXPIREAT', key, ms, 'NX')
  redis.call('PEXPIREAT', key, ms, 'GT')
end

-- `token`: of who ends it; `keep_ms`: how long its record stays.
local function end_batch(prefix, id, now, status, token, keep_ms)
  local batch = prefix .. 'batch:' .. id
  local tenant, n_failed = unpack(redis.call('HMGET', batch, 'tenant', 'n_failed'))
  redis.call('HSET', batch, 'status', status, status .. '_ms', now, 'ended_by', token)
  redis.call('HDEL', batch, 'hold', 'attend', 'wake_at')
  redis.call('ZREM', prefix .. 'attention', id)
  redis.call('UNLINK', batch .. ':flights', batch .. ':ended', batch .. ':refused')
  redis.call('PEXPIRE', batch, keep_ms)
  redis.call('PEXPIRE', batch .. ':segments', keep_ms)
  keep_until(prefix .. 'batches:' .. tenant, now + keep_ms)
  local remains_ms = tonumber(n_failed) > 0 and math.max(keep_ms, REMAINS_MS) or REMAINS_MS
  redis.call('ZADD', prefix .. 'remains', now + remains_ms, id)
  keep_until(prefix .. 'remains', now + remains_ms + CLEARING_MS)
  tell(prefix, 'batch', id, status, 'given', redis.call('HGET', batch, 'given'))
end
