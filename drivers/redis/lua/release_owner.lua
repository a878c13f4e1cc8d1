-- Makes the tasks ready that a session holds, and takes it off the list of those that may take here.
--
-- include tube
-- ARGV: 4 the session, which is over; - for every session, and then all stay on the list · 5 how many tasks at most.
-- Reply: changes.
-- Cost: O(log n) each.
refuse_when_full()
local owner, limit = ARGV[4], ARGV[5]
local members
if owner == NONE then
  members = call('ZRANGE', HELD, 0, limit - 1)
else
  call('SREM', SESSIONS, owner)
  members = call('ZRANGEBYLEX', HELD, '[' .. owner, '(' .. owner .. LAST_DIGIT, 'LIMIT', 0, limit)
end
for _, member in ipairs(members) do
  local id = string.sub(member, -16)
  make_ready('release', id, load(id))
end
ring_all()
return changes
