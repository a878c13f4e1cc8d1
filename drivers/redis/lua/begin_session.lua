-- Adds a connection to a session, which is made if it is not there. Called again, it changes nothing.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the connection, by an id that no other ever had · 2 the session · 3 its ttr in ms, if it is made · 4 the
-- connection's label, for people.
-- Reply: 1.
-- Cost: O(1).
even_when_full()
call('HSET', SESSIONS, ARGV[2], (read_session(ARGV[2]) or ARGV[3]) .. ' -')
call('HSET', CONNECTIONS, ARGV[1], ARGV[2] .. ' 0 ' .. ARGV[4])
return 1
