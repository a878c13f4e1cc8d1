-- Adds a connection to a session, which is made if it is not there.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the session · 2 its ttr in ms · 3 the connection's label, for people.
-- Reply: the connection's number.
-- Cost: O(1).
even_when_full()
local id = call('HINCRBY', LAST, 'connection', 1)
call('HSET', SESSIONS, ARGV[1], ARGV[2] .. ' -')
call('HSET', CONNECTIONS, id, ARGV[1] .. ' 0 ' .. ARGV[3])
return id
