-- Whether somebody has a running job.
-- Its entry has been delivered, and was so, or renewed, less than a lease ago.
local function has_holder(stream, entry, lease_ms)
  local row = redis.pcall('XPENDING', stream, 'workers', entry, entry, 1)[1] -- an error: there is no group
  return row and row[3] < lease_ms
end
