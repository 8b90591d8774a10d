-- What of a job lies in a store of files, with a reference in its hash.
-- Invariant: a job names all that its hash has ever referred to.
local LONGEST_REFERENCE = 400

local function references_of(key)
  local found = {}
  for _, field in ipairs({'job', 'body', 'result'}) do
    local size = redis.call('HSTRLEN', key, field) -- texts may be long
    if size > 0 and size <= LONGEST_REFERENCE then
      local value = redis.call('HGET', key, field)
      if string.sub(value, 1, 1) == '@' then
        found[#found + 1] = value
      end
    end
  end
  return found
end
