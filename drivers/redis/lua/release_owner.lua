-- Makes ready the tasks that a session holds, and with the last of them takes it off the list of sessions that may take
-- here.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the session, which is over; - for every session, and then all stay on the list · 5 how many tasks at most.
-- Reply: changes, by id; those of every session by priority and id.
-- Cost: O(log n) each.
local owner, limit = ARGV[4], ARGV[5]
local members
if owner == NONE then
  members = call('ZRANGEBYLEX', STATES, '[t', '(t' .. LAST_DIGIT, 'LIMIT', 0, limit)
else
  members = call('ZRANGEBYLEX', HELD, '[' .. owner .. ' ', '(' .. owner .. AFTER_SPACE, 'LIMIT', 0, limit)
end
local tasks = {}
for n, member in ipairs(members) do
  local id = owner == NONE and string.sub(member, 2) or string.match(member, ' (%S+)')
  tasks[n] = {id = id, t = load(id)}
end
if owner == NONE and priority then
  table.sort(tasks, function(a, b)
    local one, other = tonumber(a.t.pri), tonumber(b.t.pri)
    return one < other or (one == other and a.id < b.id)
  end)
end
for _, task in ipairs(tasks) do make_ready('release', task.id, task.t) end
-- Last, since a session that is off the list holds nothing: a damaged task, which ends the script, must not hide others
if owner ~= NONE and #members < tonumber(limit) then call('SREM', SESSIONS, owner) end
ring_all()
return changes
