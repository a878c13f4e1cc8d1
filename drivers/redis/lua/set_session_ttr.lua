-- Sets how long a session outlives its last connection.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the session · 2 its ttr in ms.
-- Reply: 1.
-- Cost: O(1).
local ttr, ends = read_session(ARGV[1])
even_when_full()
if ttr then call('HSET', SESSIONS, ARGV[1], ARGV[2] .. ' ' .. ends) end
return 1
