-- Adds a tube to the catalogue.
--
-- include queue
-- ARGV: 1 its name · 2 its entry, JSON without the id.
-- Reply: its id; 0 where the name is taken.
-- Cost: O(1).
if call('HEXISTS', TUBES, ARGV[1]) == 1 then return 0 end
local id = call('HINCRBY', LAST, 'tube', 1)
call('HSET', TUBES, ARGV[1], '{"id":' .. string.format('%.0f', id) .. ',' .. string.sub(ARGV[2], 2))
return id
