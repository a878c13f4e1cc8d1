-- Says that a process waits, so that it is called. Its next command is a BLPOP of the bell.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the process · 5 for how many ms · 6 t: for tasks; r: for room · 7 with r, the tube's capacity.
-- Reply: 1 if there may be something for it at once.
-- Cost: O(log n).
if not exists() then return 1 end
even_when_full()
local until_ = plus(server_ms(), ARGV[5])
if ARGV[6] == 'r' then
  call('ZADD', SEEKING, until_, ARGV[4])
  return call('ZCARD', STATES) < tonumber(ARGV[7]) and 1 or 0
end
call('ZADD', WAITING, until_, ARGV[4])
return #in_order('r', 1)
