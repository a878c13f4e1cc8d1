-- Puts a tube back into the catalogue that was lost from it, for the doctor; and never gives its number again.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 its number · 2 its name, empty to see to its number only · 3 its entry, JSON.
-- Reply: 1 where that was done; 0 where the name is taken, or the number was given.
-- Cost: O(1).
even_when_full()
local is_new = tonumber(ARGV[1]) > tonumber(call('HGET', LAST, 'tube') or 0)
if is_new then call('HSET', LAST, 'tube', ARGV[1]) end
if ARGV[2] ~= '' then return call('HSETNX', TUBES, ARGV[2], ARGV[3]) end
return is_new and 1 or 0
