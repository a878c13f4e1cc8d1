-- Puts tasks aside until they are kicked.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then for each task its id, its token or -, and the session of that take or -, which counts only with a
-- token.
-- Reply: changes; a task that was buried already is not among them.
-- Cost: O(log n) each.
for n = 4, #ARGV, 3 do
  local id = ARGV[n]
  local t = stored(id, ARGV[n + 1], ARGV[n + 2])
  if t and t.state ~= '!' then move('bury', id, t, '!', end_of_life(t)) end
end
ring_all()
return changes
