#!lua flags=allow-oom
-- claim: hands out the jobs of silent workers and waiting ones.
-- Invariant: a job that is handed out is running under a lease that nobody else has ever had; never more are handed
-- out than asked for, and never more suspects. Cancelled, expired and vanished jobs end here.
-- Room is counted in slots, of inputs in places: a job may want several, and only the last one that is handed out more
-- than there are.
-- uses: clock ending putback orphans
local load = KEYS[1]
local prefix, model, worker, nonce = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lease_ms, is_sweep = tonumber(ARGV[5]), ARGV[6] == '1'
local quick, interactive, bulk = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local suspects = tonumber(ARGV[10]) -- in all lanes together: jobs whose next death must be theirs alone
local own = tonumber(ARGV[11]) -- jobs of its own stream, however many slots they want
local inputs, bulk_inputs = tonumber(ARGV[12]), tonumber(ARGV[13]) -- beside all slots
local version = tonumber(ARGV[14]) -- the newest kind of request that the worker can read
local marks = ARGV[15] -- of the store that it reads, each between spaces

local MOST_DEATHS = 3
local MOST_EXCUSED = 10 -- deaths together with the server: a job may also be what ends a whole machine

-- Whether a request can be read by the worker: it may lie in a store, with a reference in its place.
local function is_in_reach(request, newness, store)
  return tonumber(newness or 1) <= version
    and (string.sub(request or '', 1, 1) ~= '@' or string.find(marks, ' ' .. (store or '') .. ' ', 1, true))
end

local function is_suspect(deaths)
  return deaths == MOST_DEATHS - 1
end

local now = clock()
local own_stream = prefix .. 'q:@' .. worker
local handed = {}
local handed_cost = 0 -- what they take from their tenants' shares
local no_longer_queued = {} -- counts of the load hash -> how many fewer
local looks = 1000 -- entries looked at in one call: a script makes everybody wait
local LOOKS_OF_AN_ENDING = 10 -- as long as it takes
local cleared = 0 -- of them, what is gone now

local function discard(stream, entry)
  redis.call('XACK', stream, 'workers', entry)
  redis.call('XDEL', stream, entry)
  cleared = cleared + 1
end

local function end_without_answer(id, status, code, message)
  end_job(prefix, id, now, status, without_answer(status, code, message))
  looks = looks - LOOKS_OF_AN_ENDING
  cleared = cleared + 1
end

-- Gives the job of a delivered entry to this worker, if it still wants doing. The slots that it takes; 0 when it was not
-- handed out.
local function hand_out(stream, entry, id, is_lost)
  looks = looks - 1
  local key = prefix .. 'job:' .. id
  local status, known, request, newness, created, deadline, deaths, cancel, queue, tenant, held_by, events, log_keep_ms,
    epoch, attempts, started, cost, slots, store = unpack(redis.call(
      'HMGET', key, 'status', 'entry', 'job', 'version', 'created_ms', 'deadline_ms', 'deaths', 'cancel', 'queue',
      'tenant', 'worker', 'events', 'log_keep_ms', 'epoch', 'attempts', 'started_ms', 'cost', 'slots',
      'store'))
  if known ~= entry or (status ~= 'queued' and status ~= 'running') then
    discard(stream, entry)
    return 0
  end

  local is_lapsed = status == 'running'
  if is_lapsed and not is_lost then
    -- Delivered anew although somebody has it: the group was made again. Its holder's next renewal takes the entry
    -- back; should there be none, a sweep finds it after one lease.
    return 0
  end
  if cancel then
    end_without_answer(id, 'cancelled', 'cancelled', 'The job was cancelled.')
    return 0
  elseif now >= tonumber(deadline) then
    end_without_answer(id, 'expired', 'expired', 'The deadline passed.')
    return 0
  end

  deaths = tonumber(deaths)
  local fate, with_server
  if is_lapsed then
    fate, with_server = fate_of(prefix, held_by, now, lease_ms)
  end
  if fate == 'unheard' then
    return 0 -- a later sweep will know
  elseif fate == 'silent' and not (with_server and redis.call('HINCRBY', key, 'excused', 1) <= MOST_EXCUSED) then
    deaths = redis.call('HINCRBY', key, 'deaths', 1)
  end
  if deaths >= MOST_DEATHS then
    local why = deaths .. ' workers died while they had it'
    bury(prefix, id, model, tenant, held_by, why)
    end_without_answer(id, 'failed', 'worker_died', 'The job was given up: ' .. why .. '.')
    return 0
  elseif not is_in_reach(request, newness, store) or (is_suspect(deaths) and suspects <= 0) then
    -- Not for this worker, or not now.
    if is_lapsed then
      put_back(prefix, key, worker)
    elseif not is_lost then
      redis.call('XCLAIM', stream, 'workers', worker, 0, entry, 'IDLE', AGES_MS, 'JUSTID')
    end
    return 0
  end

  epoch, attempts = epoch + 1, attempts + 1
  local lease = worker .. ':' .. epoch .. ':' .. nonce
  redis.call(
    'HSET', key, 'status', 'running', 'lease', lease, 'worker', worker, 'epoch', epoch, 'attempts', attempts,
    'started_ms', started or now)
  if epoch > 1 then
    redis.call('HDEL', key, 'unheard_ms') -- while it waited nobody looked whether somebody listens
  end
  -- From here on the log refuses the ids of earlier attempts, whatever they believe.
  redis.call('XADD', prefix .. 'log:' .. id, epoch .. '-0', 'attempt', attempts)
  redis.call('PEXPIREAT', prefix .. 'log:' .. id, deadline + log_keep_ms)
  if is_suspect(deaths) then
    suspects = suspects - 1
  end
  if not is_lapsed then
    for _, count in ipairs({'queued:' .. queue, 'queued:' .. queue .. ':' .. tenant}) do
      no_longer_queued[count] = (no_longer_queued[count] or 0) + 1
    end
  end
  handed_cost = handed_cost + cost
  local is_own = stream == own_stream and 1 or 0
  handed[#handed + 1] = {id, request, lease, attempts, deaths, tonumber(events), created, deadline, is_own, queue}
  return tonumber(slots or 1)
end

-- Jobs of one stream that were given back, or whose worker let a whole lease go by; with a lane, those that belong
-- there now. Returns the slots that they take.
local function take_lost(stream, room, lane)
  local taken, from = 0, '-'
  while taken < room and looks > 0 do
    local rows = redis.pcall('XPENDING', stream, 'workers', 'IDLE', lease_ms, from, '+', room - taken)
    if rows.err or #rows == 0 then
      break -- an error: there is no such group yet, so nothing was ever delivered
    end
    for _, row in ipairs(rows) do
      if taken >= room then
        break
      end
      local entry = row[1]
      from = '(' .. entry
      local found = redis.call('XRANGE', stream, entry, entry)[1]
      if not found or found[2][1] ~= 'job' then
        discard(stream, entry)
      elseif not lane or redis.call('HGET', prefix .. 'job:' .. found[2][2], 'home') == lane then
        local slots = hand_out(stream, entry, found[2][2], true)
        if slots > 0 then
          redis.call('XCLAIM', stream, 'workers', worker, 0, entry, 'JUSTID')
          taken = taken + slots
        end
      else
        looks = looks - 1
      end
    end
  end
  return taken
end

-- The next entries of one stream, delivered to this worker; nil when there is none.
local function deliver(stream, count)
  local command = {'XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', count, 'STREAMS', stream, '>'}
  local reply = redis.pcall(unpack(command))
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) or redis.call('EXISTS', stream) == 0 then
      return nil
    end
    -- From the start: whatever is in the stream has been delivered to nobody that we know of.
    redis.call('XGROUP', 'CREATE', stream, 'workers', 0)
    reply = redis.call(unpack(command))
  end
  return reply and reply[1][2] or nil
end

local function hand_out_all(stream, entries)
  local taken = 0
  for _, entry in ipairs(entries) do
    local field, id = entry[2][1], entry[2][2]
    if field ~= 'job' then
      discard(stream, entry[1])
    else
      taken = taken + hand_out(stream, entry[1], id, false)
    end
  end
  return taken
end

local function take_own(room)
  local taken = is_sweep and take_lost(own_stream, room) or 0
  while taken < room and looks > 0 do
    local entries = deliver(own_stream, room - taken)
    if not entries then
      break
    end
    taken = taken + hand_out_all(own_stream, entries)
  end
  return taken
end

-- Tenants by turn: the one that has had least goes first, one job at a time.
local function take_waiting(lane, room)
  local turn = prefix .. 'turn:' .. model .. ':' .. lane
  local is_narrow = now >= tonumber(redis.call('HGET', load, 'wide:' .. lane) or 0)
  local taken, idle = 0, 0 -- idle: tenants in front that have nothing waiting
  while taken < room and looks > 0 do
    local tenant, had = unpack(redis.call('ZRANGE', turn, idle, idle, 'WITHSCORES'))
    if not tenant then
      break
    end
    local stream = prefix .. 'q:' .. model .. ':' .. lane .. ':' .. tenant
    local is_alone = redis.call('ZCARD', turn) == 1
    local entries = deliver(stream, is_alone and is_narrow and room - taken or 1)
    if not entries then
      idle = idle + 1
    else
      redis.call('HINCRBY', load, 'taken:' .. lane .. ':' .. tenant, #entries)
      local cost_before = handed_cost
      taken = taken + hand_out_all(stream, entries)
      local cost = handed_cost - cost_before
      if cost > 0 then
        redis.call('HSET', load, 'clock:' .. lane, had)
        redis.call('ZINCRBY', turn, cost, tenant)
      end
    end
  end
  return taken
end

local orphans = is_sweep and settle_orphans(prefix, model, worker, now, lease_ms) or {}
local waiting = {} -- lane -> jobs, when this call began
local LANES = {'quick', 'interactive', 'inputs', 'bulk', 'bulk_inputs'}
for i, count in ipairs(redis.call(
  'HMGET', load, 'queued:quick', 'queued:interactive', 'queued:inputs', 'queued:bulk', 'queued:bulk_inputs')) do
  waiting[LANES[i]] = tonumber(count or 0)
end

local function take(lane, room)
  local taken = 0
  if room <= 0 then
    return taken
  end
  for _, stream in ipairs(orphans) do
    taken = taken + take_lost(stream, room - taken, lane)
  end
  if is_sweep then
    for _, tenant in ipairs(redis.call('ZRANGE', prefix .. 'turn:' .. model .. ':' .. lane, 0, -1)) do
      if taken >= room or looks <= 0 then
        break
      end
      taken = taken + take_lost(prefix .. 'q:' .. model .. ':' .. lane .. ':' .. tenant, room - taken)
    end
  end
  -- The count saves a look at every tenant; a sweep looks all the same, should the count be wrong.
  if taken < room and (is_sweep or waiting[lane] > 0) then
    taken = taken + take_waiting(lane, room - taken)
  end
  return taken
end

local most_suspects = suspects
local n_own = take_own(own)
local n_quick = take('quick', quick)
local n_interactive = take('interactive', interactive)
local n_inputs = take('inputs', inputs)
local n_bulk = take('bulk', bulk - n_interactive) -- they share slots: what a person got, bulk does not get
local n_bulk_inputs = take('bulk_inputs', bulk_inputs)
for count, fewer in pairs(no_longer_queued) do
  redis.call('HINCRBY', load, count, -fewer)
end
local n_waiting = tonumber(redis.call('HGET', load, 'queued:bulk') or 0)
local is_more = looks <= 0 and cleared > 0
return {
  now, is_more and 1 or 0, n_waiting, handed, n_quick, n_interactive, n_bulk, most_suspects - suspects, n_own, n_inputs,
  n_bulk_inputs}
