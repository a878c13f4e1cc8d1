-- Counts tasks by state.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: how many are ready, taken, delayed, buried.
-- Cost: O(log n).
local counts = {}
for n, state in ipairs({'r', 't', '~', '!'}) do
  counts[n] = call('ZLEXCOUNT', STATES, '[' .. state, '(' .. state .. LAST_DIGIT)
end
return counts
