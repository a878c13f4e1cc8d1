-- Removes tasks in any state.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then for each task its id, its token or -, and the session of that take or -, which counts only with a
-- token.
-- Reply: changes.
-- Cost: O(log n) each.
for n = 4, #ARGV, 3 do
  local id = ARGV[n]
  local t = stored(id, ARGV[n + 1], ARGV[n + 2])
  if t then remove('delete', id, t, true) end
end
ring_all()
return changes
