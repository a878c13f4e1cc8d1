-- Reads the sessions, their connections, and the roll.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: none.
-- Reply: three lists of pairs.
-- Cost: O(sessions).
return {call('HGETALL', SESSIONS), call('HGETALL', CONNECTIONS), call('HGETALL', ROLL)}
