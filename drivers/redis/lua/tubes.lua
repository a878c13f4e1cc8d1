-- Reads the catalogue.
--
-- include queue
-- Reply: pairs of a name and an entry.
-- Cost: O(tubes).
return call('HGETALL', TUBES)
