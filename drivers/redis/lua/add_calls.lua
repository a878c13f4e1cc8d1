-- Adds to the counts of calls.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then pairs of an event and how often.
-- Reply: 1.
-- Cost: O(1) each.
if not exists() then return 1 end
even_when_full()
for n = 4, #ARGV, 2 do call('HINCRBY', CALLS, ARGV[n], ARGV[n + 1]) end
return 1
