-- For the doctor: tells which of a tube's keys have the wrong type. Writes nothing.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: for each of them the key, its type, and the type that it must have.
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
