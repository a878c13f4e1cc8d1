-- Moves a connection to another session that is there, and ends the one that it leaves if that has no other connection.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the connection · 2 the session · 3 now, in ms.
-- Reply: that session's ttr in ms; nothing if it is unknown or over.
-- Cost: O(sessions).
local ttr, ends = read_session(ARGV[2])
local stored = call('HGET', CONNECTIONS, ARGV[1])
if not ttr or not stored or (ends ~= NONE and tonumber(ends) <= tonumber(ARGV[3])) then return false end
even_when_full()
call('HSET', SESSIONS, ARGV[2], ttr .. ' -')
call('HSET', CONNECTIONS, ARGV[1], ARGV[2] .. string.match(stored, ' .*$'))
end_lonely(ARGV[3])
return ttr
