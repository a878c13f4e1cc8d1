-- Included by every script of a tube: its keys, the record of a task, and the indexes that a task is in.
--
-- KEYS, always all of them and in this order; the tube's hash tag makes them one slot of a Cluster:
--   meta      hash     next: the id of the next task · run: the server's run, in a temporary tube · dropped: when it was;
--                      gave: the last id before that
--   tasks     hash     id -> record · id .. = -> payload, as it was put
--   states    zset     score 0, state .. id: every task, by state and id
--   ready     zset     score pri, id: what a take looks at, in order. In grouped tubes the heads of free sub-queues
--                      only; in tubes without priority and groups it is empty, and the order is that of `states`
--   line      zset     score 0, utube .. NUL .. pri .. id: all ready tasks of a grouped tube, by sub-queue
--   busy      hash     utube -> id of the task that is taken, in a grouped tube
--   held      zset     score 0, owner .. id: the taken tasks, by session
--   buried    zset     score pri, id: the buried tasks of a tube with priority, in the order of a kick
--   due       zset     score ms since the epoch, id: when time does something to a task next
--   sessions  set      sessions that may take here, see admit
--   calls     hash     event -> how often
--   waiting   zset     score ms since the epoch, process: who waits for tasks, until when it says so again
--   bell      list     one element for each of these that is called; they wait in BLPOP
--   seeking   zset     as `waiting`, of puts that wait for room
--   room      list     as `bell`, for these
--
-- An id is sixteen decimal digits, so that ids sort as text. A record is text: state pri created updated due ttl ttr
-- attempts owner kind utube, with one space between; times in ms, - for none; kind is j (the payload is JSON) or b
-- (bytes); the sub-queue's name comes last, since it may contain spaces.
--
-- ARGV of every script begin with: 1 the tube's features, of t(imed) p(riority) g(rouped) b(ounded) n(ewest first);
-- 2 now, in ms; 3 how many consumers wait in the caller's own process, which wakes them itself.
--
-- An error NOTUBE: the tube was dropped. NOSESSION: this session must be admitted first.
local META, TASKS, STATES, READY, LINE, BUSY, HELD, BURIED, DUE, SESSIONS, CALLS, WAITING, BELL, SEEKING, ROOM =
  unpack(KEYS)
local features, now, here = ARGV[1], ARGV[2], tonumber(ARGV[3])
local call = redis.call
local NONE, LAST_DIGIT = '-', ':'

local timed = string.find(features, 't', 1, true)
local priority = string.find(features, 'p', 1, true)
local grouped = string.find(features, 'g', 1, true)
local newest = string.find(features, 'n', 1, true)

local function exists()
  return call('HEXISTS', META, 'next') == 1
end

-- A server whose memory is full refuses a first write that may add something, and no write after the first. Only a put
-- is to be refused then, as a whole: what is there must be taken, finished and rescued all the same. So every other
-- script first removes something, be it nothing.
local function even_when_full()
  call('HDEL', META, '-')
end

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

-- Lua itself prints fourteen digits.
local function plus(a, b)
  return string.format('%.0f', a + b)
end

local function end_of_life(t)
  return t.ttl == NONE and NONE or plus(t.created, t.ttl)
end

-- The first ready tasks of a task's sub-queue.
local function first_in_line(t, count)
  return call('ZRANGEBYLEX', LINE, '[' .. t.utube .. '\0', '(' .. t.utube .. '\1', 'LIMIT', 0, count)
end

local function in_line(id, t)
  return t.utube .. '\0' .. string.rep('0', 16 - #t.pri) .. t.pri .. id
end

local function lead(member)
  call('ZADD', READY, string.sub(member, -32, -17), string.sub(member, -16))
end

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

local function index(id, t)
  call('ZADD', STATES, 0, t.state .. id)
  if t.due ~= NONE then call('ZADD', DUE, t.due, id) end
  if t.state == 'r' then
    index_ready(id, t)
  elseif t.state == 't' then
    call('ZADD', HELD, 0, t.owner .. id)
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
    call('ZREM', HELD, t.owner .. id)
    if grouped then
      call('HDEL', BUSY, t.utube)
      lead_next(t)
    end
  elseif t.state == '!' and priority then
    call('ZREM', BURIED, id)
  end
end

-- The first ready (r) or buried (!) tasks, in the order of a take. Of a grouped tube's ready ones, those a take gets.
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

-- The server's own clock, for what tests' clocks must not touch.
local function server_ms()
  local time = call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6, -4)
end

-- What a script answers: for each change its event, the task's id, its record after it, and the payload.
local changes = {}
local waking, freed = 0, 0

local function note(event, id, t, payload)
  local n = #changes
  changes[n + 1], changes[n + 2], changes[n + 3], changes[n + 4] = event, id, record(t), payload
end

-- Moves a task into another state.
local function move(event, id, t, state, due, owner)
  unindex(id, t)
  t.state, t.due, t.owner, t.updated = state, due, owner, now
  call('HSET', TASKS, id, record(t))
  index(id, t)
  if state == 'r' or grouped then waking = waking + 1 end
  note(event, id, t, payload_of(id))
end

local function make_ready(event, id, t)
  move(event, id, t, 'r', end_of_life(t), NONE)
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

-- The task of an id; with a token only while that very lease lasts.
local function stored(id, token)
  local t = load(id)
  if t and (token == NONE or (t.state == 't' and t.attempts == token)) then return t end
end

-- The same, if the owner holds it; the owner - is anybody.
local function held(id, token, owner)
  local t = stored(id, token)
  if t and t.state == 't' and (owner == NONE or t.owner == owner) then return t end
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
      make_ready(t.state == 't' and 'ttr' or 'delay', id, t)  -- if its ttl is over, too, that comes in its turn
    end
  end
  return limit
end

-- Calls up to `count` of the processes that wait, each once. The lists hold no more than there are processes.
local function ring(who, bell, count)
  if count <= 0 or call('ZCARD', who) == 0 then return end
  call('ZREMRANGEBYSCORE', who, '-inf', server_ms())
  local free = call('ZCARD', who) - call('LLEN', bell)
  for _ = 1, math.min(count, free) do
    redis.pcall('LPUSH', bell, 1)  -- where the memory is full they look by themselves, later
  end
end

-- Calls those that have something to do now.
local function ring_all()
  ring(WAITING, BELL, waking - here)
  if freed > 0 then ring(SEEKING, ROOM, freed) end
end
