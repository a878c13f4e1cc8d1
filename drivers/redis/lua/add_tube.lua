-- Adds a tube to the catalogue.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 its name · 2 its entry, JSON without id and after.
-- Reply: its id; 0 where the name is taken. And the id of a task after which its own begin.
-- Cost: O(1).
if call('HEXISTS', TUBES, ARGV[1]) == 1 then return {0, '0'} end
local id = string.format('%.0f', call('HINCRBY', LAST, 'tube', 1))
local after = call('HGET', LAST, 'task') or '0'
call('HSET', TUBES, ARGV[1], '{"id":' .. id .. ',"after":' .. after .. ',' .. string.sub(ARGV[2], 2))
return {tonumber(id), after}
