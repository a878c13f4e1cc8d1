-- Reads tasks.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then the ids.
-- Reply: for each task that is there its id, its record and its payload.
-- Cost: O(1) each.
local found = {}
for n = 4, #ARGV do
  local stored_record = call('HGET', TASKS, ARGV[n])
  if stored_record then
    found[#found + 1] = ARGV[n]
    found[#found + 1] = stored_record
    found[#found + 1] = call('HGET', DATA, ARGV[n])
  end
end
return found
