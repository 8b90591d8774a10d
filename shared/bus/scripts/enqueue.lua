#!lua
-- enqueue: one job into its lane, or the reason why not.
-- Invariant: a job's hash and its queue entry appear together, once for a job id and once for an idempotency key; with a
-- line of a batch, that one's cursor moves too. Refused when memory is full, as no other change of a job is.
-- uses: clock lines
local job, load, stream, due, lanes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local turn, index, owners = KEYS[6], KEYS[7], KEYS[8]
local idem = KEYS[9] -- only with an idempotency key
local id, model, lane, tenant, cost = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local life_ms, keep_ms, log_keep_ms = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local most, most_of_tenant = tonumber(ARGV[9]), tonumber(ARGV[10])
local wake, fingerprint = ARGV[11], ARGV[12]
local queue = ARGV[13] -- quick, interactive, bulk, inputs or bulk_inputs; or own: for one worker alone
local request, body, endpoint, metadata, durable = ARGV[14], ARGV[15], ARGV[16], ARGV[17], ARGV[18]
local version = ARGV[19]
local slots = tonumber(ARGV[20]) -- how many of a worker's it takes, or places of inputs
local home = ARGV[21] -- the queue of what is for one worker alone, should that be gone; empty: it ends with it
local compat, webhook = ARGV[22], ARGV[23] -- JSON, or empty
local store = ARGV[24] -- mark of the one that its maker reads; or empty
local batch_id, token = ARGV[25], ARGV[26] -- only of a line of a batch: which one, and the token of who holds it
local from, to = tonumber(ARGV[27]), tonumber(ARGV[28]) -- where in the plan the line is

local jobs = string.sub(job, 1, -#id - 1)
local prefix = string.sub(jobs, 1, -#'job:' - 1)
local batch = batch_id and prefix .. 'batch:' .. batch_id
local now = clock()

-- A key of many jobs lives as long as the longest of them.
local function keep_until(key, ms)
  redis.call('PEXPIREAT', key, ms, 'NX')
  redis.call('PEXPIREAT', key, ms, 'GT')
end

local known, why
if batch then
  known, why = next_in_plan(batch, token, from, to, now)
  if not known then
    return {why, id}
  end
end
if redis.call('EXISTS', job) == 1 then
  if batch then -- somebody else made it: it is the line's from here on
    leave_plan(batch, known, id, from, to)
    redis.call('HSET', job, 'batch', batch_id)
    local status = redis.call('HGET', job, 'status')
    if status ~= 'queued' and status ~= 'running' then
      end_line(prefix, batch_id, id, now)
    end
  end
  return {'new', id} -- said again because our reply was lost
end
if idem then
  local owner, made_of = string.match(redis.call('GET', idem) or '', '^(%S+) (%S+)$')
  -- A job that is gone has set its key free.
  if owner and redis.call('EXISTS', jobs .. owner) == 1 then
    return {made_of == fingerprint and 'known' or 'conflict', owner}
  end
end

local of_queue, of_tenant = 'queued:' .. queue, 'queued:' .. queue .. ':' .. tenant
local tickets = 'added:' .. queue .. ':' .. tenant
local counts = redis.call(
  'HMGET', load, of_queue, of_tenant, tickets, 'queued:own', 'queued:quick', 'queued:interactive', 'queued:bulk',
  'queued:inputs', 'queued:bulk_inputs', 'queued:own:' .. tenant, 'queued:quick:' .. tenant,
  'queued:interactive:' .. tenant, 'queued:bulk:' .. tenant, 'queued:inputs:' .. tenant,
  'queued:bulk_inputs:' .. tenant)
local waiting, waiting_of_tenant = 0, 0
for i = 4, 9 do
  waiting = waiting + (counts[i] or 0)
  waiting_of_tenant = waiting_of_tenant + (counts[i + 6] or 0)
end
if waiting >= most then
  return {'full', most}
elseif waiting_of_tenant >= most_of_tenant then
  return {'full', most_of_tenant}
end

local deadline = now + life_ms
local gone_ms = deadline + keep_ms
if batch then
  deadline, gone_ms = math.min(deadline, known.expires_ms), known.until_ms
end
local entry = redis.call('XADD', stream, '*', 'job', id)
local is_own = queue == 'own'
local ahead, ticket = tonumber(counts[2] or 0), (counts[3] or 0) + 1
redis.call('HSET', load, of_queue, (counts[1] or 0) + 1, of_tenant, ahead + 1, tickets, ticket)

local rare = {} -- fields that few jobs have
if webhook ~= '' then
  rare = {'webhook', webhook}
end
if store ~= '' then
  rare = {'store', store, unpack(rare)}
end
if batch then
  rare = {'batch', batch_id, unpack(rare)}
  leave_plan(batch, known, id, from, to)
end
redis.call(
  'HSET', job, 'status', 'queued', 'job', request, 'version', version, 'body', body, 'endpoint', endpoint,
  'compat', compat, 'metadata', metadata, 'durable', durable, 'model', model, 'lane', lane, 'queue', queue,
  'tenant', tenant, 'cost', cost, 'slots', slots, 'stream', stream, 'entry', entry, 'ticket', ticket, 'attempts', 0, 'deaths', 0,
  'epoch', 0, 'events', 0, 'created_ms', now, 'deadline_ms', deadline, 'keep_ms', keep_ms, 'log_keep_ms', log_keep_ms,
  unpack(rare))
redis.call('PEXPIREAT', job, gone_ms)
if slots > 1 then
  -- Until then, claims of this queue look at how wide each job is before they take another.
  local wide = 'wide:' .. queue
  redis.call('HSET', load, wide, math.max(deadline, redis.call('HGET', load, wide) or 0))
end
redis.call('ZADD', due, deadline, id)
if idem then
  redis.call('SET', idem, id .. ' ' .. fingerprint, 'PXAT', deadline + keep_ms)
end

if durable == '1' and not batch then
  redis.call('ZADD', index, now, id)
  keep_until(index, deadline + keep_ms)
  -- Each comer takes some of the gone along, so that the index stays as long as the list of jobs.
  for _, other in ipairs(redis.call('ZRANDMEMBER', index, 3)) do
    if redis.call('EXISTS', jobs .. other) == 0 then
      redis.call('ZREM', index, other)
    end
  end
end

if is_own then
  redis.call('HSET', job, 'home', home)
  -- The stream goes with its last job, should the worker never come back.
  keep_until(stream, deadline + keep_ms)
  redis.call('SADD', owners, string.match(stream, ':q:@(.*)$'))
  keep_until(owners, deadline + keep_ms)
  redis.call('SADD', lanes, model .. ':own')
else
  redis.call('SADD', lanes, model .. ':' .. queue)
  if ahead == 0 then
    -- Who comes back does not get the turns that it did not use.
    redis.call('ZADD', turn, 'GT', redis.call('HGET', load, 'clock:' .. queue) or 0, tenant)
  end
end
redis.call('PUBLISH', wake, 'new')
return {'new', id}
