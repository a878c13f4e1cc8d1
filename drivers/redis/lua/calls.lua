-- Reads the counts of calls.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: pairs of an event and how often.
-- Cost: O(1).
return call('HGETALL', CALLS)
