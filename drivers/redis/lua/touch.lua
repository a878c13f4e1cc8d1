-- Adds to the ttr, the ttl and the deadline of tasks that a session holds.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the session, - for anybody · 5 how much, in ms · then for each task its id and its token or -.
-- Reply: changes.
-- Cost: O(log n) each.
even_when_full()
local owner = ARGV[4]

local function more(ms, delta)
  return ms == NONE and NONE or plus(ms, delta)
end

local seen = {}
for n = 6, #ARGV, 2 do
  local id = ARGV[n]
  local t = not seen[id] and held(id, ARGV[n + 1], owner)
  if t then
    seen[id] = true
    local delta = math.min(ARGV[5], headroom(t.ttl), headroom(t.ttr))
    t.due, t.ttl, t.ttr, t.updated = more(t.due, delta), more(t.ttl, delta), more(t.ttr, delta), now
    call('HSET', TASKS, id, record(t))
    if t.due ~= NONE then call('ZADD', DUE, t.due, id) end
    note('touch', id, t, payload_of(id))
  end
end
return changes
