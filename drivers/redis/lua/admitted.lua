-- Tells which sessions may take here.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: their ids.
-- Cost: O(sessions).
return call('SMEMBERS', SESSIONS)
