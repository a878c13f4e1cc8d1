-- Reads tasks.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then the ids.
-- Reply: for each task that is there its id, its record and its payload.
-- Cost: O(1) each.
local found = {}
for n = 4, #ARGV do
  local stored = call('HMGET', TASKS, ARGV[n], ARGV[n] .. '=')
  if stored[1] then
    found[#found + 1] = ARGV[n]
    found[#found + 1] = stored[1]
    found[#found + 1] = stored[2]
  end
end
return found
