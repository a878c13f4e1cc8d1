-- Removes a tube with all its tasks, unless some are taken. A mark is kept for a day, so that no process that still
-- knows the tube makes it again.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: how many tasks are taken, 0 if the tube is gone · the last id that it gave.
-- Cost: O(log n); the memory is given back in the background.
local taken = call('ZCARD', HELD)
local next_id = call('HGET', META, 'next')
local last = next_id and plus(next_id, -1) or call('HGET', META, 'gave') or '0'
if taken > 0 or not next_id then return {taken, last} end
local waiting, seeking = call('ZCARD', WAITING), call('ZCARD', SEEKING)
call('UNLINK', unpack(KEYS))
call('HSET', META, 'dropped', server_ms(), 'gave', last)
call('PEXPIRE', META, 86400000)
for _ = 1, waiting do call('LPUSH', BELL, 1) end
for _ = 1, seeking do call('LPUSH', ROOM, 1) end
call('PEXPIRE', BELL, 10000)
call('PEXPIRE', ROOM, 10000)
return {0, last}
