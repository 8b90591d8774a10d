#!lua flags=allow-oom
-- renew: says that a worker is alive, for all jobs that it holds, even if it holds none.
-- Invariant: an entry's idle time starts anew only for the holder of the lease. (An unchecked XCLAIM would steal the
-- entry back from whoever has taken it over.)
-- uses: clock
local beats = KEYS[1] -- then one job for each lease
local prefix, worker, lease_ms = ARGV[1], ARGV[2], tonumber(ARGV[3]) -- then the leases
local BEATS_KEPT_MS = 3600000
local ABANDONED_MS = 15000 -- longer than any process needs to connect again

-- When each worker was heard last, and since when the living have been heard without a break: a server that was away
-- has heard nobody, and must not take that for their death. `@boot`: when one that was started anew first heard anybody.
local now = clock()
local last, run_before = unpack(redis.call('HMGET', beats, '@last', '@run'))
if not last or math.abs(now - last) > lease_ms / 2 then
  redis.call('HSET', beats, '@since', now)
end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
if run ~= run_before then
  redis.call('HSET', beats, '@run', run)
  if run_before then
    redis.call('HSET', beats, '@boot', now)
  end
end
redis.call('HSET', beats, worker, now, '@last', now)
redis.call('PEXPIRE', beats, BEATS_KEPT_MS)

-- Whether the one who waits for a job is gone without a word: it alone listens, and nobody has done so for a while.
local function is_abandoned(job, durable, batch, unheard_ms)
  if durable == '1' or batch then
    return false
  end
  local channel = prefix .. 'live:' .. string.sub(job, #prefix + #'job:' + 1)
  if redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
    if unheard_ms then
      redis.call('HDEL', job, 'unheard_ms')
    end
    return false
  elseif not unheard_ms then
    redis.call('HSET', job, 'unheard_ms', now)
    return false
  end
  return now - unheard_ms > ABANDONED_MS
end

local verdicts = {}
for i = 2, #KEYS do
  local job = KEYS[i]
  local status, lease, stream, entry, cancel, durable, batch, unheard_ms, finished_by = unpack(redis.call(
    'HMGET', job, 'status', 'lease', 'stream', 'entry', 'cancel', 'durable', 'batch', 'unheard_ms', 'finished_by'))
  if finished_by == ARGV[i + 2] then
    verdicts[i - 1] = 'ended' -- by this very worker, which has not heard the reply yet
  elseif status ~= 'running' or lease ~= ARGV[i + 2] then
    verdicts[i - 1] = 'lost'
  else
    redis.pcall('XCLAIM', stream, 'workers', worker, 0, entry, 'JUSTID') -- no group: the next claim makes one
    if not cancel and is_abandoned(job, durable, batch, unheard_ms) then
      cancel = redis.call('HSET', job, 'cancel', 1)
    end
    verdicts[i - 1] = cancel and 'cancel' or 'ok'
  end
end
return verdicts
