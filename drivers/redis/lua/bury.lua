-- Puts tasks aside until they are kicked.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then for each task its id, its token or -, and the session that took it so or -, which is asked with a token.
-- Reply: changes; a buried task is none.
-- Cost: O(log n) each.
for n = 4, #ARGV, 3 do
  local id = ARGV[n]
  local t = stored(id, ARGV[n + 1], ARGV[n + 2])
  if t and t.state ~= '!' then move('bury', id, t, '!', end_of_life(t)) end
end
ring_all()
return changes
