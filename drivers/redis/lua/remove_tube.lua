-- Removes a tube from the catalogue, unless another has its name by now. Later tubes' ids go on after its last one.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 its name · 2 its id · 3 the last id that it gave to a task.
-- Reply: 1 if it was removed.
-- Cost: O(1).
even_when_full()
if tonumber(ARGV[3]) > tonumber(last('task') or '0') then call('HSET', LAST, 'task', ARGV[3]) end
local entry = call('HGET', TUBES, ARGV[1])
if not entry or string.match(entry, '^{"id":(%d+)') ~= ARGV[2] then return 0 end
return call('HDEL', TUBES, ARGV[1])
