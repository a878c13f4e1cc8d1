-- Tells which sessions may take here.
--
-- include tube
-- Reply: their ids.
-- Cost: O(sessions).
return call('SMEMBERS', SESSIONS)
