-- Calls the roll, unless it was called just now: notes the beat of each connection, and how often it has been the same
-- as at the roll call before. Who looks but for a moment knows the dead by that.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 how far roll calls are apart, in ms: a third of `dead_after` · 2 how many absences make a connection dead: 3.
-- Reply: of each connection that is dead, its id and its beat.
-- Cost: O(connections).
local time = call('TIME')
local now, apart, most = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]), tonumber(ARGV[2])
local at = tonumber(call('HGET', ROLL, '-') or '') or 0
local is_due = now < at or now > at + apart
local roll, dead = {'-', string.format('%.0f', now)}, {}
local known = call('HGETALL', CONNECTIONS)
for n = 1, #known, 2 do
  local _, beat = read_connection(known[n])
  if beat then
    local before, absences = string.match(call('HGET', ROLL, known[n]) or '', '^(%S+) (%d+)$')
    if before ~= beat or now < at then
      absences = 0
    elseif is_due then
      absences = absences + 1
    end
    roll[#roll + 1] = known[n]
    roll[#roll + 1] = beat .. ' ' .. string.format('%.0f', absences)
    if tonumber(absences) >= most then
      dead[#dead + 1] = known[n]
      dead[#dead + 1] = beat
    end
  end
end
if is_due then
  even_when_full()
  call('DEL', ROLL)
  for n = 1, #roll, 2 do call('HSET', ROLL, roll[n], roll[n + 1]) end
end
return dead
