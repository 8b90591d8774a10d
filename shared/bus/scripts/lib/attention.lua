-- When a batch is looked at next, and by whom.
-- Invariant: until a batch has ended it stands in the sorted set `attention`, at the time from which somebody may take
-- it: when its rest is over or the lease of its holder runs out. Only the token of the last who took it is good for
-- changing it, and that only until it has rested.
--
-- hash `batch:<id>`: `hold` is the token, `attend` is set when something happened meanwhile, so that there is no rest;
-- with `wake_at` the rest is also over when so many of its lines have ended and are not collected.

local FURTHEST_MS = 300000

-- When a rest or a lease is over.
local function later(now, ms)
  return now + math.min(ms, FURTHEST_MS)
end

-- Whether its time has come. One that lies further ahead than any can was reckoned before the clock was set back.
local function is_past(at, now)
  return at <= now or at > now + FURTHEST_MS
end

-- `token` is never empty.
local function is_held(batch, token)
  return redis.call('HGET', batch, 'hold') == token
end

-- Has somebody look at a batch soon. A living holder is left alone: its rest will be none.
local function attend(prefix, id, now)
  local batch = prefix .. 'batch:' .. id
  if redis.call('HEXISTS', batch, 'hold') == 1 then
    redis.call('HSET', batch, 'attend', 1)
  else
    redis.call('ZADD', prefix .. 'attention', 'XX', 'LT', now, id)
  end
end
