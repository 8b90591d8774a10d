-- What was meant for one worker alone, when that worker is gone.
-- Invariant: what only it could do ends then, and what others can do as well is everybody's: it is delivered, and so old
-- that the next sweep of anybody finds it. What somebody holds is left alone.

-- What became of a worker whose lease has run out: 'alive' (it never knew of the lease, or was held up), 'silent', or
-- 'unheard' while the server itself has only just begun to hear anybody. And whether the server was started anew since it
-- was heard, so that both may have ended together.
local function fate_of(prefix, worker, now, lease_ms)
  local heard, last, since, boot = unpack(redis.call('HMGET', prefix .. 'beats', worker, '@last', '@since', '@boot'))
  if heard and math.abs(now - heard) < lease_ms then
    return 'alive'
  elseif last and (math.abs(now - last) > lease_ms / 2 or math.abs(now - since) < lease_ms * 3 / 5) then
    return 'unheard'
  end
  return 'silent', heard and boot and tonumber(heard) < tonumber(boot)
end

-- It said so, or is silent while others are heard.
local function is_gone(prefix, worker, now, lease_ms)
  local left, last = unpack(redis.call('HMGET', prefix .. 'beats', worker .. ':left', '@last'))
  return left or (last and fate_of(prefix, worker, now, lease_ms) == 'silent')
end

local function end_bound(prefix, id, now)
  local message = 'The worker that it was for is gone.'
  end_job(prefix, id, now, 'failed', without_answer('failed', 'not_ready', message))
end

local SETTLED_AT_ONCE = 1000 -- entries: a script makes everybody wait

-- Delivers what its worker never had. Entries that mean nothing any more go.
local function age_waiting(prefix, stream)
  redis.pcall('XGROUP', 'CREATE', stream, 'workers', 0) -- an error: there is one, or no stream
  if redis.call('EXISTS', stream) == 0 then
    return
  end
  local reply = redis.call(
    'XREADGROUP', 'GROUP', 'workers', '@orphans', 'COUNT', SETTLED_AT_ONCE, 'STREAMS', stream, '>')
  for _, entry in ipairs(reply and reply[1][2] or {}) do
    local status, known = unpack(redis.call('HMGET', prefix .. 'job:' .. (entry[2][2] or ''), 'status', 'entry'))
    if known ~= entry[1] or (status ~= 'queued' and status ~= 'running') then
      redis.call('XACK', stream, 'workers', entry[1])
      redis.call('XDEL', stream, entry[1])
    elseif status == 'queued' then
      redis.call('XCLAIM', stream, 'workers', '@orphans', 0, entry[1], 'IDLE', AGES_MS, 'JUSTID')
    end
    -- One that runs was delivered anew, since the group was made again: its holder's next renewal takes it back.
  end
end

local function end_all_bound(prefix, stream, now, lease_ms)
  local rows = redis.pcall('XPENDING', stream, 'workers', 'IDLE', lease_ms, '-', '+', SETTLED_AT_ONCE)
  if rows.err then
    return -- no stream
  end
  for _, row in ipairs(rows) do
    local found = redis.call('XRANGE', stream, row[1], row[1])[1]
    local id = found and found[2][2] or ''
    local status, known, home = unpack(redis.call('HMGET', prefix .. 'job:' .. id, 'status', 'entry', 'home'))
    if known == row[1] and home == '' and (status == 'queued' or status == 'running') then
      end_bound(prefix, id, now)
    end
  end
end

-- The streams of a model's workers that are gone, but that of `worker`, settled.
local function settle_orphans(prefix, model, worker, now, lease_ms)
  local streams = {}
  for _, owner in ipairs(redis.call('SMEMBERS', prefix .. 'owners:' .. model)) do
    if owner ~= worker and is_gone(prefix, owner, now, lease_ms) then
      local stream = prefix .. 'q:@' .. owner
      age_waiting(prefix, stream)
      end_all_bound(prefix, stream, now, lease_ms)
      streams[#streams + 1] = stream
    end
  end
  return streams
end
