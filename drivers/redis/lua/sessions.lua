-- Reads the sessions and their connections.
--
-- include queue
-- Reply: two lists of pairs.
-- Cost: O(sessions).
return {call('HGETALL', SESSIONS), call('HGETALL', CONNECTIONS)}
