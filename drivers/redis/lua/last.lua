-- Tells the last number that was given to a tube, for the doctor.
--
-- include queue
-- Reply: that number.
-- Cost: O(1).
return tonumber(call('HGET', LAST, 'tube') or 0)
