-- Reads the sessions and their connections.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: none.
-- Reply: two lists of pairs.
-- Cost: O(sessions).
return {call('HGETALL', SESSIONS), call('HGETALL', CONNECTIONS)}
