-- Removes tasks in any state, silently.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 how many at most.
-- Reply: how many.
-- Cost: O(log n) each.
local members = call('ZRANGEBYLEX', STATES, '-', '+', 'LIMIT', 0, ARGV[4])
for _, member in ipairs(members) do
  local id = string.sub(member, 2)
  local t = load(id)
  unindex(id, t)
  erase(id)
end
ring(SEEKING, ROOM, #members)
return #members
