-- An ending that somebody must be told of.
-- Invariant: one row for each ending, written with it.

-- The outbox is emptied by whoever tells of endings; should nobody do so, it stops growing here.
local OUTBOX_ROWS = 1000000

-- `kind`: job or batch. What follows are names and values of which somebody may be told when the record has gone.
local function tell(prefix, kind, id, status, ...)
  redis.call('XADD', prefix .. 'outbox', 'MAXLEN', '~', OUTBOX_ROWS, '*', kind, id, 'status', status, ...)
end
