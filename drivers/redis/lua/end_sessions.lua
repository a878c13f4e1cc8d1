-- Removes the connections that are taken for dead, and ends the sessions that have none left.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 now, in ms · then for each dead connection its id and the beat it had; if that has changed, it lives.
-- Reply: the sessions that are over.
-- Cost: O(sessions).
for n = 2, #ARGV, 2 do
  local _, beat = read_connection(ARGV[n])
  if beat == ARGV[n + 1] then call('HDEL', CONNECTIONS, ARGV[n]) end
end
end_lonely(ARGV[1])
local over = {}
local sessions = call('HGETALL', SESSIONS)
for n = 1, #sessions, 2 do
  local ends = string.match(sessions[n + 1], '^%d+ (%d+)$')
  if ends and tonumber(ends) <= tonumber(ARGV[1]) then over[#over + 1] = sessions[n] end
end
return over
