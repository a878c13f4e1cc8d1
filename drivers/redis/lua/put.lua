-- Stores tasks: all of them, or none if the capacity leaves no room for all.
--
-- include plain
-- KEYS: those of a tube, see tube.lua; of one without features the first eight do.
-- ARGV: 4 capacity, 0 for none · then for each task its record, in the state r or ~, and its payload.
-- Reply: the last of their ids, which are consecutive; 0 if there is no room.
-- Cost: O(log n) each.
local count = (#ARGV - 4) / 2
if ARGV[4] ~= '0' and call('ZCARD', STATES) + count > tonumber(ARGV[4]) then
  call('HDEL', META, '-')  -- see denied in tasks.lua
  return 0
end
local first = call('HINCRBY', META, 'next', count) - count
if first == 0 then
  call('HDEL', META, 'next')
  return redis.error_reply('NOTUBE it was dropped')
end
if is_plain then
  for n = 1, count do
    local id = string.format('%016.0f', first + n - 1)
    call('HSET', TASKS, id, ARGV[3 + 2 * n], id .. '=', ARGV[4 + 2 * n])
    call('ZADD', STATES, 0, 'r' .. id)
  end
  if call('EXISTS', WAITING) == 0 then return first + count - 1 end
end
-- include tube
if is_plain then
  waking = count
  ring_all()
  return first + count - 1
end
-- include tasks
for n = 1, count do
  local id, t = string.format('%016.0f', first + n - 1), parse(ARGV[3 + 2 * n])
  call('HSET', TASKS, id, ARGV[3 + 2 * n], id .. '=', ARGV[4 + 2 * n])
  index(id, t)
  if t.state == 'r' then waking = waking + 1 end
end
ring_all()
return first + count - 1
