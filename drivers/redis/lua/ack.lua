-- Removes the tasks that a session holds.
--
-- include plain
-- KEYS: those of a tube, see tube.lua; of one without features the first eight do.
-- ARGV: 4 the session, - for anybody · then for each task its id, its token or -, and 1 if its payload is wanted.
-- Reply: changes; a task that the session does not hold is not among them. In place of a record there may be the token
-- alone, if session and token were given and the payload was not wanted.
-- Cost: O(log n) each.
local owner = ARGV[4]
if is_plain then
  local changes = {}
  for n = 5, #ARGV, 3 do ack_plain(changes, ARGV[n], ARGV[n + 1], owner, ARGV[n + 2]) end
  return changes
end
-- include tube
-- include tasks
for n = 5, #ARGV, 3 do
  local id = ARGV[n]
  local t = held(id, ARGV[n + 1], owner)
  if t then remove('ack', id, t, ARGV[n + 2] == '1') end
end
ring_all()
return changes
