-- For the doctor: tells which sessions hold tasks, one session after another. Writes nothing.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the session after which to begin, or empty · 5 how many at most.
-- Reply: for each its id, how many tasks it holds, and 1 if it may take here.
-- Cost: O(log n) each.
local found, after = {}, ARGV[4]
for _ = 1, tonumber(ARGV[5]) do
  local from = after == '' and '(' or '(' .. after .. AFTER_SPACE  -- past an empty member, else found for ever
  local member = call('ZRANGEBYLEX', HELD, from, '+', 'LIMIT', 0, 1)[1]
  if not member then break end
  after = string.match(member, '^(%S+) ') or member
  local n = #found
  found[n + 1], found[n + 2] = after, call('ZLEXCOUNT', HELD, '[' .. after, '(' .. after .. AFTER_SPACE)
  found[n + 3] = call('SISMEMBER', SESSIONS, after)
end
return found
