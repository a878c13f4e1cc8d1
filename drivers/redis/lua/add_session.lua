-- For the doctor: adds a session that has a connection but is missing itself, or cannot be read.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the session · 2 its ttr in ms.
-- Reply: 1 if it was so, and now is not.
-- Cost: O(connections).
if read_session(ARGV[1]) then return 0 end
for _, stored in ipairs(call('HVALS', CONNECTIONS)) do
  if string.match(stored, '^%S+') == ARGV[1] then
    even_when_full()
    call('HSET', SESSIONS, ARGV[1], ARGV[2] .. ' -')
    return 1
  end
end
return 0
