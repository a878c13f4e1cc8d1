-- Looks again at one thing that the doctor has found to be wrong, and repairs it.
--
-- include tube
-- include tasks
-- include rules
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 where it is · 5 what it is · 6 the rule that it broke: what examine.lua said, or payload for a task whose JSON
-- cannot be read · 7 the last id that tubes gave before this one was made.
-- Reply: 1 if it was still wrong; 0 if not, and then nothing is written.
-- Cost: O(log n), and the length of the payload if the record is rebuilt.
local where, what, broken = ARGV[4], ARGV[5], ARGV[6]
local rule, id, t = wrong(where, what)
if broken == 'payload' and not rule and t and t.kind == 'j' then rule = broken end
if rule ~= broken then return 0 end
even_when_full()

-- Puts the right task in front of a sub-queue; or takes the first one out of `line` if it does not belong there.
local function align(utube)
  local first = grouped and first_in_line({utube = utube}, 1)[1]
  if not first then return end
  if call('HEXISTS', BUSY, utube) == 1 then
    call('ZREM', READY, string.sub(first, -16))
  elseif wrong_member('line', first) then
    call('ZREM', LINE, first)
  else
    lead(first)
  end
end

-- Takes a task out of all indexes in which it can be found by its id, or by its record.
local function take_out(id, t)
  for _, state in ipairs({'r', 't', '~', '!'}) do call('ZREM', STATES, state .. id) end
  for _, key in ipairs({READY, BURIED, DUE}) do call('ZREM', key, id) end
  if not t then return end
  call('ZREM', LINE, in_line(id, t))
  call('ZREM', HELD, lease(id, t))
  if call('HGET', BUSY, t.utube) == id then call('HDEL', BUSY, t.utube) end
end

-- Stores a task's new record, and puts the task where it belongs by that. Its id never comes again.
local function put_in(id, t)
  if t.state ~= 't' then t.owner = NONE end
  if not timed then t.due, t.ttl, t.ttr = NONE, NONE, NONE end
  call('HSET', TASKS, id, record(t))
  index(id, t)
  align(t.utube)
  local next_id = tonumber(call('HGET', META, 'next') or '')
  if next_id and next_id <= tonumber(id) then call('HSET', META, 'next', plus(id, 1)) end
end

-- The record of a task of which only the payload is left.
local function unknown(id)
  local kind = pcall(cjson.decode, payload_of(id)) and 'j' or 'b'
  return {state = '!', pri = '0', created = now, updated = now, due = NONE, ttl = NONE, ttr = NONE, attempts = '0',
    owner = NONE, kind = kind, utube = ''}
end

local function set_aside(t, state)
  t.state, t.owner, t.updated, t.due = state, NONE, now, end_of_life(t)
end

-- Takes a member out of its index.
local function remove_member()
  call(where == 'busy' and 'HDEL' or 'ZREM', INDEXES[where], what)
  if where == 'busy' then align(what) end
end

if rule == 'ghost' or rule == 'astray' or rule == 'worse' then
  remove_member()
elseif rule == 'front' then
  align(what)
elseif rule == 'next' then
  call('HSET', META, 'next', plus(math.max(last_id(), ARGV[7]), 1))
elseif rule == 'undropped' then
  local gave = tonumber(call('HGET', META, 'gave') or '') or 0
  call('HDEL', META, 'dropped', 'gave')
  call('PERSIST', META)
  if wrong_next() then call('HSET', META, 'next', plus(math.max(last_id(), ARGV[7], gave), 1)) end
elseif rule == 'uncounted' then
  call('HDEL', CALLS, what)
elseif rule == 'empty' then
  take_out(id, t)
  call('HDEL', TASKS, id)
  if t then align(t.utube) end
elseif rule == 'unreadable' or rule == 'lost' then
  take_out(id)
  put_in(id, unknown(id))
else
  take_out(id, t)
  if rule == 'payload' then
    t.kind = 'b'
    set_aside(t, '!')
  elseif rule == 'due' then
    t.due = right_due(t)
  elseif rule ~= 'orphan' and rule ~= 'extra' then
    set_aside(t, 'r')
  end
  put_in(id, t)
end
if INDEXES[where] and wrong_member(where, what) then remove_member() end  -- it led to a task that is elsewhere now
waking, freed = 1, 1
ring_all()
return 1
