-- Gives back tasks that a session holds: to their old place, or delayed.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the session, - for anybody · 5 the delay in ms, which is added to the ttl; 0 if the type has no times · then
-- for each task its id and its token or -.
-- Reply: changes.
-- Cost: O(log n) each.
local owner, delay = ARGV[4], ARGV[5]
for n = 6, #ARGV, 2 do
  local id = ARGV[n]
  local t = held(id, ARGV[n + 1], owner)
  if t and delay == '0' then
    make_ready('release', id, t)
  elseif t then
    if t.ttl ~= NONE then t.ttl = plus(t.ttl, math.min(delay, headroom(t.ttl))) end
    move('release', id, t, '~', plus(now, delay))
  end
end
ring_all()
return changes
