-- Removes a connection, and ends its session if that was its last one.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the connection · 2 now, in ms.
-- Reply: 1.
-- Cost: O(sessions).
call('HDEL', CONNECTIONS, ARGV[1])
end_lonely(ARGV[2])
return 1
