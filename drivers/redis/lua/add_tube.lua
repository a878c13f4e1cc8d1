-- Adds a tube to the catalogue. Called again with the same number, it changes nothing and answers the same.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 its name · 2 its number, which no other ever had · 3 its entry, JSON without id, order and after.
-- Reply: the id after which those of its tasks begin; an empty text if the name is taken.
-- Cost: O(1); O(tubes) if the key last does not say what comes next.
local known = call('HGET', TUBES, ARGV[1])
if known then
  return string.match(known, '^{"id":(%d+)') == ARGV[2] and string.match(known, '"after":(%d+)') or ''
end
local after = last('task') or highest('after')
local order = string.format('%.0f', (last('tube') or highest('order')) + 1)
call('HSET', LAST, 'tube', order, 'task', after)
local begin = '{"id":' .. ARGV[2] .. ',"order":' .. order .. ',"after":' .. after .. ','
call('HSET', TUBES, ARGV[1], begin .. string.sub(ARGV[3], 2))
return after
