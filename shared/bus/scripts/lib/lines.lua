-- A line of a batch between its plan and its record.
-- Invariant: the batch's cursor (`n_fed`, `plan_offset`) is behind a line if and only if that line stands in `flights`
-- or in a segment. A line in `flights` that has ended, or never became a job, stands in `ended` too, once.
--
-- sorted set `batch:<id>:flights`: job ids by where in the plan their lines begin.
-- sorted set `batch:<id>:ended`: those of them that can be collected, by the time of their end.
-- hash `batch:<id>:refused`: by job id, what is to be said of lines that became no job.
-- uses: attention

-- Puts a line that has ended before its batch. False: there is no such batch any more.
local function end_line(prefix, batch_id, id, now)
  local batch = prefix .. 'batch:' .. batch_id
  local until_ms, wake_at = unpack(redis.call('HMGET', batch, 'until_ms', 'wake_at'))
  if not until_ms then
    return false
  end
  local ended = batch .. ':ended'
  redis.call('ZADD', ended, 'NX', now, id)
  redis.call('PEXPIREAT', ended, until_ms, 'NX')
  if wake_at and redis.call('ZCARD', ended) >= tonumber(wake_at) then
    redis.call('HDEL', batch, 'wake_at')
    attend(prefix, batch_id, now)
  end
  return true
end

-- Why the line of the plan from `from` to `to` may not go on its way now; nil when it may.
local function not_next(batch, token, from, to, now)
  local hold, status, offset, expires = unpack(
    redis.call('HMGET', batch, 'hold', 'status', 'plan_offset', 'expires_ms'))
  if hold ~= token then
    return 'lost'
  elseif tonumber(offset) >= to then
    return 'fed' -- said again because our reply was lost
  elseif status ~= 'in_progress' or now >= tonumber(expires) then
    return 'stopped'
  elseif tonumber(offset) ~= from then
    return 'behind' -- one before it did not go
  end
end

-- Moves the cursor behind a line, which goes on its way as `id`.
local function feed_line(batch, id, from, to)
  local n_fed, in_flight, until_ms = unpack(redis.call('HMGET', batch, 'n_fed', 'n_in_flight', 'until_ms'))
  redis.call('HSET', batch, 'n_fed', n_fed + 1, 'n_in_flight', in_flight + 1, 'plan_offset', to)
  redis.call('ZADD', batch .. ':flights', from, id)
  redis.call('PEXPIREAT', batch .. ':flights', until_ms, 'NX')
end
