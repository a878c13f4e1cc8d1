-- For the doctor: tells how much a tube's keys hold. Writes nothing.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: the id of the next task, or an empty text · the last id that it gave if it was dropped, or an empty text · how
-- many are in tasks, states, ready, line, busy, held, buried, due · how many of those in states are ready,
-- taken, delayed, buried.
-- Cost: O(log n).
local found = {
  call('HGET', META, 'next') or '', call('HGET', META, 'dropped') and (call('HGET', META, 'gave') or '0') or '',
  call('HLEN', TASKS), call('ZCARD', STATES), call('ZCARD', READY), call('ZCARD', LINE), call('HLEN', BUSY),
  call('ZCARD', HELD), call('ZCARD', BURIED), call('ZCARD', DUE),
}
for _, state in ipairs({'r', 't', '~', '!'}) do
  found[#found + 1] = call('ZLEXCOUNT', STATES, '[' .. state, '(' .. state .. LAST_DIGIT)
end
return found
