-- Lets a session take here. The caller then asks whether that session is still alive, and if not, takes it off the list
-- again (`release_owner`): a session is ended first, and then taken off the lists of all tubes.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the session.
-- Reply: 1.
-- Cost: O(1).
if not exists() then return redis.error_reply('NOTUBE it was dropped') end
even_when_full()
call('SADD', SESSIONS, ARGV[4])
return 1
