-- Removes tasks in any state.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then for each task its id and its token or -.
-- Reply: changes.
-- Cost: O(log n) each.
for n = 4, #ARGV, 2 do
  local id = ARGV[n]
  local t = stored(id, ARGV[n + 1])
  if t then remove('delete', id, t, true) end
end
ring_all()
return changes
