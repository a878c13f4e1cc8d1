-- Says that a process waits no longer. For each call that it did not need, another process that waits is called.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the process · 5 t: for tasks; r: for room · 6 how many calls it did not need.
-- Reply: 1.
-- Cost: O(log n).
local who, bell = WAITING, BELL
if ARGV[5] == 'r' then who, bell = SEEKING, ROOM end
call('ZREM', who, ARGV[4])
ring(who, bell, tonumber(ARGV[6]))
return 1
