-- Removes a session that is over and holds nothing any more.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the session.
-- Reply: 1.
-- Cost: O(1).
local _, ends = read_session(ARGV[1])
if ends and ends ~= NONE then call('HDEL', SESSIONS, ARGV[1]) end
return 1
