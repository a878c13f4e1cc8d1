-- Tells the last number that was given to a tube, for the doctor.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: none.
-- Reply: that number.
-- Cost: O(1).
return tonumber(call('HGET', LAST, 'tube') or 0)
