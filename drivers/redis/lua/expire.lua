-- Does what time asks: the ends of ttl, ttr and delay.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 of how many tasks at most.
-- Reply: changes, in the order in which they were due.
-- Cost: O(log n) each.
settle(tonumber(ARGV[4]))
ring_all()
return changes
