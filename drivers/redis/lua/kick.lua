-- Makes buried tasks ready, in the order of a take.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 how many at most.
-- Reply: changes.
-- Cost: O(log n) each.
for _, id in ipairs(in_order('!', tonumber(ARGV[4]))) do make_ready('kick', id, load(id)) end
ring_all()
return changes
