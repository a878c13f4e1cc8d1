-- Calls the roll: for each connection that was not called within its own beat interval, notes the beat, and how often
-- in a row it was the same as the time before. By that, a process that stays only for a moment knows the dead.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the connection that has just begun · 2 its beat interval in ms: a third of its `dead_after` · 3 how many
-- absences make a connection dead: 3.
-- Reply: for each dead connection its id and its beat.
-- Cost: O(connections).
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gone, dead = {}, {}
local roll = call('HGETALL', ROLL)
for n = 1, #roll, 2 do gone[roll[n]] = roll[n + 1] end
local connections = call('HGETALL', CONNECTIONS)
even_when_full()
for n = 1, #connections, 2 do
  local id, beat = connections[n], string.match(connections[n + 1], '^%S+ (%S+)')
  local before, absences, called, every = string.match(gone[id] or '', '^(%S+) (%d+) (%d+) (%d+)$')
  gone[id] = nil
  if not before or id == ARGV[1] then before, absences, called, every = NONE, 0, 0, ARGV[2] end
  if beat and math.abs(now - called) > tonumber(every) then
    absences = before == beat and now > tonumber(called) and absences + 1 or 0
    call('HSET', ROLL, id, string.format('%s %.0f %.0f %s', beat, absences, now, every))
  end
  if before == beat and tonumber(absences) >= tonumber(ARGV[3]) then
    dead[#dead + 1] = id
    dead[#dead + 1] = beat
  end
end
for id in pairs(gone) do call('HDEL', ROLL, id) end
return dead
