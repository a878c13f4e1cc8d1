-- Stores tasks: all of them, or none where the capacity leaves no room for all.
--
-- include tube
-- ARGV: 4 capacity, 0 for none · then for each task its record, r or ~, and its payload.
-- Reply: the last of their ids, which follow each other; 0: no room.
-- Cost: O(log n) each.
local last = call('HGET', META, 'last')
if not last then return redis.error_reply('NOTUBE it was dropped') end
local count = (#ARGV - 4) / 2
local capacity = tonumber(ARGV[4])
if capacity > 0 and call('HLEN', TASKS) + count > capacity then return 0 end
call('HSET', META, 'last', plus(last, count))
for n = 1, count do
  local id, text = string.format('%016.0f', last + n), ARGV[3 + 2 * n]
  call('HSET', TASKS, id, text)
  call('HSET', DATA, id, ARGV[4 + 2 * n])
  if features == '' then
    call('ZADD', STATES, 0, 'r' .. id)
    waking = waking + 1
  else
    local t = parse(text)
    index(id, t)
    if t.state == 'r' then waking = waking + 1 end
  end
end
ring_all()
return last + count
