-- Reads the catalogue, or what it says of one tube.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the name of a tube; nothing for all of them.
-- Reply: pairs of a name and an entry.
-- Cost: O(tubes), or O(1).
if not ARGV[1] then return call('HGETALL', TUBES) end
local entry = call('HGET', TUBES, ARGV[1])
return entry and {ARGV[1], entry} or {}
