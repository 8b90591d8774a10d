-- How a file comes to be known, whoever makes it: a client that sent it, or a batch that is done.
-- Invariant: its hash, its place in its tenant's list and the time at which it goes come into being together, in the
-- partition that its id names; what was filed before stays as it is.
--
-- hash `file:<id>`: `record` is the FileRecord in JSON, whose `created_at` and `expires_at` count for nothing, since
-- only a script knows the time: `created_ms` and `expires_ms` (0: it has been deleted) say it.
-- sorted set `files:<tenant>`: ids by created_ms. sorted set `due_files`: ids by expires_ms, until their bytes are gone.

local FILE_GRACE_MS = 7 * 86400000 -- to delete its bytes in, before the record goes by itself

-- `tenant` as in keys: percent-encoded. `record`: JSON. `now`, `life_ms`: numbers.
local function file_record(prefix, id, tenant, record, now, life_ms)
  local key, index = prefix .. 'file:' .. id, prefix .. 'files:' .. tenant
  if redis.call('EXISTS', key) == 1 then
    return
  end
  local expires = now + life_ms
  redis.call('HSET', key, 'record', record, 'created_ms', now, 'expires_ms', expires)
  redis.call('PEXPIREAT', key, expires + FILE_GRACE_MS)
  redis.call('ZADD', index, now, id)
  redis.call('PEXPIREAT', index, expires + FILE_GRACE_MS, 'NX')
  redis.call('PEXPIREAT', index, expires + FILE_GRACE_MS, 'GT')
  redis.call('ZADD', prefix .. 'due_files', expires, id)
end
