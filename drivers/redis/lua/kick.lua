-- Makes buried tasks ready, in the order of a take.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 how many at most.
-- Reply: changes.
-- Cost: O(log n) each.
local limit = tonumber(ARGV[4])
local ids
if priority then
  ids = call('ZRANGE', BURIED, 0, limit - 1)
else
  if newest then
    ids = call('ZREVRANGEBYLEX', STATES, '(!' .. LAST_DIGIT, '[!', 'LIMIT', 0, limit)
  else
    ids = call('ZRANGEBYLEX', STATES, '[!', '(!' .. LAST_DIGIT, 'LIMIT', 0, limit)
  end
  for n = 1, #ids do ids[n] = string.sub(ids[n], 2) end
end
for _, id in ipairs(ids) do make_ready('kick', id, load(id)) end
ring_all()
return changes
