-- Reads the catalogue.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: none.
-- Reply: pairs of a name and an entry.
-- Cost: O(tubes).
return call('HGETALL', TUBES)
