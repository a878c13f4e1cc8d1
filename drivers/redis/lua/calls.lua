-- Reads the counts of calls.
--
-- include tube
-- Reply: pairs of an event and how often.
-- Cost: O(1).
return call('HGETALL', CALLS)
