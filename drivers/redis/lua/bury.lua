-- Puts tasks aside until they are kicked.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then for each task its id and its token or -.
-- Reply: changes; a buried task is none.
-- Cost: O(log n) each.
for n = 4, #ARGV, 2 do
  local id = ARGV[n]
  local t = stored(id, ARGV[n + 1])
  if t and t.state ~= '!' then move('bury', id, t, '!', end_of_life(t), NONE) end
end
ring_all()
return changes
