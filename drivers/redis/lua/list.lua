-- Reads the tasks in a state, by id.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the state · 5 the id after which to begin, or empty · 6 how many at most.
-- Reply: for each that has a record its id, that record and its payload. If tasks have lost theirs, there may be fewer
-- than asked for although more tasks follow.
-- Cost: O(log n), and O(1) each.
local state, after = ARGV[4], ARGV[5]
local limit = math.min(tonumber(ARGV[6]), 2 ^ 31 - 1)  -- the most that a server of 32 bits accepts
local from = after == '' and '[' .. state or '(' .. state .. after
local found = {}
for _, member in ipairs(call('ZRANGEBYLEX', STATES, from, '(' .. state .. LAST_DIGIT, 'LIMIT', 0, limit)) do
  local id = string.sub(member, 2)
  local stored = call('HMGET', TASKS, id, id .. '=')
  if stored[1] then
    found[#found + 1] = id
    found[#found + 1] = stored[1]
    found[#found + 1] = stored[2]
  end
end
return found
