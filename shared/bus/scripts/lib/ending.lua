-- The one way in which a job ends.
-- Invariant: the first ending wins. An ended job has one result and one terminal log entry; if it is a line of a batch
-- it stands among that one's ended lines, else, if it is durable, it has one outbox row; nobody holds it, and nothing
-- counts it as waiting.
-- uses: outbox lines

-- A Finished in JSON for a job that ended without a worker's word.
local function without_answer(status, code, message)
  return cjson.encode({kind = 'finished', status = status, failure = {code = code, message = message}})
end

-- A job that workers cannot bear is remembered with why, for a person to look at.
local DEAD_ROWS = 10000
local function bury(prefix, id, model, tenant, worker, why)
  redis.call(
    'XADD', prefix .. 'dead', 'MAXLEN', '~', DEAD_ROWS, '*', 'job', id, 'model', model, 'tenant', tenant, 'worker',
    worker, 'why', why)
end

-- `status` and `result` become the job's; the caller has made sure that it has not ended yet. `lease`: of the worker
-- whose word it is, if it is one's.
local function end_job(prefix, id, now, status, result, lease)
  local key, log = prefix .. 'job:' .. id, prefix .. 'log:' .. id
  local was, events, epoch, stream, entry, model, queue, tenant, keep_ms, log_keep_ms, durable, request,
    batch, endpoint, webhook = unpack(redis.call(
      'HMGET', key, 'status', 'events', 'epoch', 'stream', 'entry', 'model', 'queue', 'tenant', 'keep_ms',
      'log_keep_ms', 'durable', 'job', 'batch', 'endpoint', 'webhook'))
  local number = events + 1
  local last = epoch .. '-' .. number
  -- Kept to see what killed it, or what lies elsewhere and has to go when it goes.
  local is_kept = status == 'failed' or string.sub(request or '', 1, 1) == '@'

  redis.call(
    'HSET', key, 'status', status, 'result', result, 'ended_ms', now, 'end_event', number, 'finished_by', lease or '',
    'lease', '', 'job', is_kept and request or '')
  redis.pcall('XADD', log, last, 'end', status) -- an error: readers end by the record

  -- Only what was delivered may be deleted: an undelivered entry stays until a claim or the reaper meets it.
  if redis.call('XACK', stream, 'workers', entry) == 1 then
    redis.call('XDEL', stream, entry)
  end
  if was == 'queued' then
    redis.call('HINCRBY', prefix .. 'load:' .. model, 'queued:' .. queue, -1)
    redis.call('HINCRBY', prefix .. 'load:' .. model, 'queued:' .. queue .. ':' .. tenant, -1)
  end
  redis.call('ZREM', prefix .. 'due', id)

  if batch and end_line(prefix, batch, id, now) then
    -- It stays as it is until its record stands in a segment; should nobody ever come, it goes with its batch.
  elseif durable == '1' then
    tell(prefix, 'job', id, status, 'tenant', tenant, 'endpoint', endpoint or '', 'webhook', webhook or '')
    redis.call('PEXPIRE', key, keep_ms)
  else
    redis.call('PEXPIRE', key, log_keep_ms) -- whoever waited for it has had it
  end
  redis.call('PEXPIRE', log, log_keep_ms)
  redis.call('PUBLISH', prefix .. 'live:' .. id, '{"id":"' .. last .. '","end":"' .. status .. '"}')
end
