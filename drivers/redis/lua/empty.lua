-- Empties a temporary tube if its tasks were put before the server's last start, or to another server.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the server's run id.
-- Reply: 1 if it was emptied.
-- Cost: O(1); the memory is given back in the background.
local run = call('HGET', META, 'run')
if not exists() or run == ARGV[4] then return 0 end
even_when_full()
call('HSET', META, 'run', ARGV[4])
if not run then return 0 end
call('UNLINK', TASKS, STATES, READY, LINE, BUSY, HELD, BURIED, DUE)
return 1
