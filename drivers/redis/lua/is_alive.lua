-- Tells whether a connection and its session live.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the connection · 2 the session.
-- Reply: 1 or 0.
-- Cost: O(1).
local session = read_connection(ARGV[1])
local _, ends = read_session(ARGV[2])
return session == ARGV[2] and ends == NONE and 1 or 0
