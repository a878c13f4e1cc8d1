-- Shows that a connection lives.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the connection.
-- Reply: 1; 0 if it was taken for dead, or its session is over.
-- Cost: O(1).
local stored = call('HGET', CONNECTIONS, ARGV[1])
if not stored then return 0 end
local session, beat, label = string.match(stored, '^(%S+) (%S+) (.*)$')
even_when_full()
call('HSET', CONNECTIONS, ARGV[1], session .. ' ' .. string.format('%.0f', beat + 1) .. ' ' .. label)
local _, ends = read_session(session)
return ends == NONE and 1 or 0
