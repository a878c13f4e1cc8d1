-- Included after tube.lua by the scripts that change tasks or know their order: the record of a task, the indexes that
-- it is in, and what time does to it.
local timed = string.find(features, 't', 1, true)
local priority = string.find(features, 'p', 1, true)
local grouped = string.find(features, 'g', 1, true)
local newest = string.find(features, 'n', 1, true)

local function parse(record)
  local t = {}
  t.state, t.pri, t.created, t.updated, t.due, t.ttl, t.ttr, t.attempts, t.owner, t.kind, t.utube =
    string.match(record, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$')
  return t
end

local function record(t)
  return table.concat(
    {t.state, t.pri, t.created, t.updated, t.due, t.ttl, t.ttr, t.attempts, t.owner, t.kind, t.utube}, ' ')
end

local function load(id)
  local stored = call('HGET', TASKS, id)
  return stored and parse(stored)
end

local function payload_of(id)
  return call('HGET', TASKS, id .. '=')
end

local function erase(id)
  call('HDEL', TASKS, id, id .. '=')
end

-- How much may be added to a ttl or a ttr: an instant computed from it must fit into 64 bits.
local function headroom(ms)
  return ms == NONE and 2 ^ 60 or math.max(2 ^ 60 - ms, 0)
end

local function end_of_life(t)
  return t.ttl == NONE and NONE or plus(t.created, t.ttl)
end

-- The first ready tasks of a task's sub-queue.
local function first_in_line(t, count)
  return call('ZRANGEBYLEX', LINE, '[' .. t.utube .. '\0', '(' .. t.utube .. '\1', 'LIMIT', 0, count)
end

-- The member of `line` for a ready task of a grouped tube.
local function in_line(id, t)
  return t.utube .. '\0' .. string.rep('0', 16 - #t.pri) .. t.pri .. id
end

-- Adds the task of such a member to `ready`: it is the head of its sub-queue, which is free.
local function lead(member)
  call('ZADD', READY, string.sub(member, -32, -17), string.sub(member, -16))
end

-- Puts a ready task in its place. If it is the new head of a free sub-queue, it replaces the former one in `ready`.
local function index_ready(id, t)
  if grouped then
    call('ZADD', LINE, 0, in_line(id, t))
    if call('HEXISTS', BUSY, t.utube) == 0 then
      local first = first_in_line(t, 2)
      if string.sub(first[1], -16) == id then
        lead(first[1])
        if first[2] then call('ZREM', READY, string.sub(first[2], -16)) end
      end
    end
  elseif priority then
    call('ZADD', READY, t.pri, id)
  end
end

-- Adds the head of a task's sub-queue to `ready`, if there is one; none of it is taken, or in `ready`, any more.
local function lead_next(t)
  local first = first_in_line(t, 1)
  if first[1] then lead(first[1]) end
end

local function unindex_ready(id, t)
  if grouped then
    call('ZREM', LINE, in_line(id, t))
    if call('ZREM', READY, id) == 1 then lead_next(t) end
  elseif priority then
    call('ZREM', READY, id)
  end
end

-- The member of `held` for a taken task's lease.
local function lease(id, t)
  return t.owner .. ' ' .. id .. ' ' .. t.attempts
end

-- These put a task into the indexes of its state and its times, and take it out of them.
local function index(id, t)
  call('ZADD', STATES, 0, t.state .. id)
  if t.due ~= NONE then call('ZADD', DUE, t.due, id) end
  if t.state == 'r' then
    index_ready(id, t)
  elseif t.state == 't' then
    call('ZADD', HELD, 0, lease(id, t))
    if grouped then call('HSET', BUSY, t.utube, id) end
  elseif t.state == '!' and priority then
    call('ZADD', BURIED, t.pri, id)
  end
end

local function unindex(id, t)
  call('ZREM', STATES, t.state .. id)
  if t.due ~= NONE then call('ZREM', DUE, id) end
  if t.state == 'r' then
    unindex_ready(id, t)
  elseif t.state == 't' then
    call('ZREM', HELD, lease(id, t))
    if grouped then
      call('HDEL', BUSY, t.utube)
      lead_next(t)
    end
  elseif t.state == '!' and priority then
    call('ZREM', BURIED, id)
  end
end

-- The first ready (r) or buried (!) tasks, in the order of a take. Of a grouped tube's ready ones, only the heads of
-- free sub-queues.
local function in_order(state, limit)
  local key = state == 'r' and (grouped or priority) and READY or state == '!' and priority and BURIED
  if key then return call('ZRANGEBYSCORE', key, '-inf', '+inf', 'LIMIT', 0, limit) end
  local members
  if newest then
    members = call('ZREVRANGEBYLEX', STATES, '(' .. state .. LAST_DIGIT, '[' .. state, 'LIMIT', 0, limit)
  else
    members = call('ZRANGEBYLEX', STATES, '[' .. state, '(' .. state .. LAST_DIGIT, 'LIMIT', 0, limit)
  end
  for n = 1, #members do members[n] = string.sub(members[n], 2) end
  return members
end

-- What these scripts answer: for each change its event, the task's id, its record after the change, and the payload.
local changes = {}

local function note(event, id, t, payload)
  local n = #changes
  changes[n + 1], changes[n + 2], changes[n + 3], changes[n + 4] = event, id, record(t), payload
end

-- Moves a task into another state, in which nobody holds it.
local function move(event, id, t, state, due)
  unindex(id, t)
  t.state, t.due, t.owner, t.updated = state, due, NONE, now
  call('HSET', TASKS, id, record(t))
  index(id, t)
  if state == 'r' or grouped then waking = waking + 1 end
  note(event, id, t, payload_of(id))
end

local function make_ready(event, id, t)
  move(event, id, t, 'r', end_of_life(t))
end

-- Removes a task; it is done. Its payload is in the answer if it is wanted there.
local function remove(event, id, t, is_wanted)
  local payload = is_wanted and payload_of(id) or ''
  unindex(id, t)
  erase(id)
  t.state, t.due, t.owner, t.updated = NONE, NONE, NONE, now
  freed = freed + 1
  if grouped then waking = waking + 1 end
  note(event, id, t, payload)
end

-- A script that changes nothing would be run by a replica too, which may not know yet what has been done since. So before
-- it denies something, it writes: if only nothing.
local function denied()
  even_when_full()
end

-- The task of an id; with a token, only while that very lease lasts and is the owner's. The owner - stands for anybody.
local function stored(id, token, owner)
  local t = load(id)
  local is_leased = t and t.state == 't' and t.attempts == token and (owner == NONE or t.owner == owner)
  if is_leased or (t and token == NONE) then return t end
  return denied()
end

-- The task of an id, if the owner holds it, by that very lease if there is a token.
local function held(id, token, owner)
  local t = stored(id, token, NONE)
  if t and t.state == 't' and (owner == NONE or t.owner == owner) then return t end
  return denied()
end

-- Does what time asks of up to `limit` tasks, in the order in which it was due: the ends of ttl, ttr and delay.
local function settle(limit)
  for done = 0, limit - 1 do
    local id = call('ZRANGEBYSCORE', DUE, '-inf', now, 'LIMIT', 0, 1)[1]
    if not id then return done end
    local t = load(id)
    local over = end_of_life(t)
    if over ~= NONE and tonumber(over) <= (tonumber(t.due) or 0) then
      remove('ttl', id, t, true)
    else
      make_ready(t.state == 't' and 'ttr' or 'delay', id, t)  -- if its ttl is over too, that comes in its turn
    end
  end
  return limit
end
