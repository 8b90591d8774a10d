-- A line of a batch between its plan and its record.
-- Invariant: the batch's cursor (`n_fed`, `plan_offset`) is behind a line if and only if that line stands in `flights`
-- or in a segment. A line in `flights` that has ended, or never became a job, stands in `ended` too, once.
--
-- sorted set `batch:<id>:flights`: job ids by where in the plan their lines begin.
-- sorted set `batch:<id>:ended`: those of them that can be collected, by the time of their end.
-- hash `batch:<id>:refused`: by job id, what is to be said of lines that became no job.
-- uses: attention

-- Puts a line that has ended before its batch. False: nobody will collect it any more.
local function end_line(prefix, batch_id, id, now)
  local batch = prefix .. 'batch:' .. batch_id
  local until_ms, ended_by, wake_at = unpack(redis.call('HMGET', batch, 'until_ms', 'ended_by', 'wake_at'))
  if not until_ms or ended_by then
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

-- What `leave_plan` needs to know of the batch of a line that may leave its plan now, from `from` to `to`; else nil, and
-- why not.
local function next_in_plan(batch, token, from, to, now)
  local hold, status, offset, expires, until_ms, n_fed, in_flight = unpack(redis.call(
    'HMGET', batch, 'hold', 'status', 'plan_offset', 'expires_ms', 'until_ms', 'n_fed', 'n_in_flight'))
  if hold ~= token then
    return nil, 'lost'
  elseif tonumber(offset) >= to then
    return nil, 'fed' -- said again because our reply was lost
  elseif status ~= 'in_progress' or now >= tonumber(expires) then
    return nil, 'stopped'
  elseif tonumber(offset) ~= from then
    return nil, 'behind' -- one before it did not go
  end
  return {expires_ms = tonumber(expires), until_ms = tonumber(until_ms), n_fed = n_fed, in_flight = in_flight}
end

-- Moves the cursor behind the line, which goes on its way as `id`.
local function leave_plan(batch, known, id, from, to)
  redis.call('HSET', batch, 'n_fed', known.n_fed + 1, 'n_in_flight', known.in_flight + 1, 'plan_offset', to)
  redis.call('ZADD', batch .. ':flights', from, id)
  redis.call('PEXPIREAT', batch .. ':flights', known.until_ms, 'NX')
end
