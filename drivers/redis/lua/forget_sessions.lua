-- Removes sessions that are over and hold nothing any more.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: then each session.
-- Reply: 1.
-- Cost: O(1) each.
for n = 1, #ARGV do
  local _, ends = read_session(ARGV[n])
  if ends and ends ~= NONE then call('HDEL', SESSIONS, ARGV[n]) end
end
return 1
