-- Tells which of a tube's keys are of another type than they must be, for the doctor. Nothing is written.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: for each of them the key, its type, and the one that it must be.
-- Cost: O(1).
local found, number = {}, 0
for right in string.gmatch('hash hash zset zset set zset list zset zset hash zset zset hash zset list', '%a+') do
  number = number + 1
  local is = call('TYPE', KEYS[number]).ok
  if is ~= right and is ~= 'none' then
    local n = #found
    found[n + 1], found[n + 2], found[n + 3] = KEYS[number], is, right
  end
end
return found
