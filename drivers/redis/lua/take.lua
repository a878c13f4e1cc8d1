-- Acks a task, if one is named, settles what is due, and takes the next tasks; does nothing if the ack is refused.
--
-- include plain
-- KEYS: those of a tube, see tube.lua; of one without features the first eight do.
-- ARGV: 4 the session that takes, which must have been admitted; - for none · 5 how many at most · 6 how many due tasks
-- are settled at most: if there are as many, nothing is taken yet · 7 a task to ack, by its id · 8 its token, or - · 9
-- 1 if its payload is wanted in the answer.
-- Reply: changes, that of the ack as ack.lua answers it; none if the ack is refused.
-- Cost: O(log n) for each task that is acked, settled or taken, whatever lies in busy sub-queues.
local owner, most = ARGV[4], tonumber(ARGV[6])
local limit = math.min(tonumber(ARGV[5]), 2 ^ 31 - 1)  -- the most that a server of 32 bits accepts
if owner ~= '-' and call('SISMEMBER', SESSIONS, owner) == 0 then
  return redis.error_reply('NOSESSION it must be admitted')  -- also if the tube was dropped, as admit will say
end
if is_plain then
  local changes = {}
  if ARGV[7] and not ack_plain(changes, ARGV[7], ARGV[8], owner, ARGV[9]) then return {} end
  for _, member in ipairs(call('ZRANGEBYLEX', STATES, '[r', '(r:', 'LIMIT', 0, limit)) do
    local id = string.sub(member, 2)
    local stored = call('HMGET', TASKS, id, id .. '=')
    local pri, created, attempts, kind =
      string.match(stored[1] or '', '^r (%S+) (%S+) %S+ %- %- %- (%S+) %- (%S+)')
    if not kind and #changes > 0 then break end  -- the next take says so; this one must tell what it has done
    attempts = string.format('%.0f', attempts + 1)
    local record =
      't ' .. pri .. ' ' .. created .. ' ' .. ARGV[2] .. ' - - - ' .. attempts .. ' ' .. owner .. ' ' .. kind .. ' '
    call('ZREM', STATES, member)  -- before the commands that add, see even_when_full
    call('HSET', TASKS, id, record)
    call('ZADD', STATES, 0, 't' .. id)
    call('ZADD', HELD, 0, owner .. ' ' .. id .. ' ' .. attempts)
    local n = #changes
    changes[n + 1], changes[n + 2], changes[n + 3], changes[n + 4] = 'take', id, record, stored[2]
  end
  return changes
end
-- include tube
-- include tasks
if ARGV[7] then
  local t = held(ARGV[7], ARGV[8], owner)
  if not t then return {} end
  remove('ack', ARGV[7], t, ARGV[9] == '1')
end
if timed and settle(most) == most then
  ring_all()
  return changes
end

for _, id in ipairs(in_order('r', limit)) do
  local t = load(id)
  if not (t and t.utube) and #changes > 0 then break end  -- as above
  local ends = t.ttr ~= NONE and plus(now, t.ttr)
  local is_due_sooner = ends and (t.due == NONE or tonumber(ends) < tonumber(t.due))
  if is_due_sooner then t.due = ends end
  t.state, t.owner, t.updated, t.attempts = 't', owner, now, plus(t.attempts, 1)
  call('ZREM', STATES, 'r' .. id)  -- before the commands that add, see even_when_full
  call('HSET', TASKS, id, record(t))
  if is_due_sooner then call('ZADD', DUE, t.due, id) end
  call('ZADD', STATES, 0, 't' .. id)
  call('ZADD', HELD, 0, lease(id, t))
  if grouped then
    call('HSET', BUSY, t.utube, id)
    call('ZREM', LINE, in_line(id, t))
  end
  if grouped or priority then call('ZREM', READY, id) end
  note('take', id, t, payload_of(id))
end
ring_all()
return changes
