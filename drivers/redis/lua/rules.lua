-- Included after tasks.lua by the doctor's scripts: what must be true of each thing in a tube's keys.
--
-- A thing is named by where it is and what stands there:
--   tasks                                           an id; with = after it, its payload
--   front                                           a sub-queue's name, for its head
--   meta                                            next
--   calls                                           an event
--   ready, line, busy, held, buried, due, states    a member, which leads to a task
local INDEXES = {ready = READY, line = LINE, busy = BUSY, held = HELD, buried = BURIED, due = DUE, states = STATES}

local function is_number(text)
  return string.find(text, '^%d+$') and #text <= 16
end

-- Times add up to more than 16 digits if a task that has the longest ones is delayed, or touched again and again.
local function is_time(text)
  return text == NONE or (string.find(text, '^%d+$') and #text <= 19)
end

-- Sums beyond 2^53 are not exact.
local function is_about(one, other)
  return one == other or (one ~= NONE and other ~= NONE and math.abs(one - other) <= one * 1e-15)
end

-- A record, if it can be read.
local function sound(text)
  local t = text and parse(text)
  if t and t.utube and string.find(t.state, '^[rt~!]$') and string.find(t.kind, '^[jb]$') and is_number(t.pri)
    and is_number(t.created) and is_number(t.updated) and is_number(t.attempts) and is_time(t.due) and is_time(t.ttl)
    and is_time(t.ttr) then
    return t
  end
end

local function has_payload(id)
  return call('HEXISTS', TASKS, id .. '=') == 1
end

local function is_id(id)
  return #id == 16 and is_number(id)
end

-- When a task is next due, by the rest of its record.
local function right_due(t)
  local over = end_of_life(t)
  if t.state == '~' then return t.due == NONE and t.updated or t.due end
  if t.state ~= 't' or t.ttr == NONE then return over end
  local due = t.due == NONE and plus(t.updated, t.ttr) or t.due
  return over ~= NONE and tonumber(over) < tonumber(due) and over or due
end

-- Where a task belongs by its record, except for `ready` in a grouped tube: its member in each index, and the score or
-- value that goes with it.
local function places(id, t)
  local found = {states = {t.state .. id, '0'}}
  if t.due ~= NONE then found.due = {id, t.due} end
  if t.state == 'r' and grouped then
    found.line = {in_line(id, t), '0'}
  elseif t.state == 'r' and priority then
    found.ready = {id, t.pri}
  elseif t.state == 't' then
    found.held = {lease(id, t), '0'}
    if grouped then found.busy = {t.utube, id} end
  elseif t.state == '!' and priority then
    found.buried = {id, t.pri}
  end
  return found
end

-- The id in a member of `held`, if there is one.
local function held_id(member)
  return string.match(member, '^%S+ (%S+) %S+$') or ''
end

-- The score of an index's member; in `busy` its value.
local function there(index, member)
  if index == 'busy' then return call('HGET', BUSY, member) end
  return call('ZSCORE', INDEXES[index], member)
end

local function is_at(index, place)
  local found = there(index, place[1])
  return found and (found == place[2] or (index ~= 'busy' and tonumber(found) == tonumber(place[2])))
end

local function is_in_front(id, t)
  return t.state == 'r' and first_in_line(t, 1)[1] == in_line(id, t) and call('HEXISTS', BUSY, t.utube) == 0
    and is_at('ready', {id, t.pri})
end

-- Each of these returns the rule that is broken, if one is, the task's id, its record, and the indexes it is missing
-- from.

local function wrong_member(index, member)
  local found = there(index, member)
  if not found then return end
  local id = index == 'busy' and found or index == 'held' and held_id(member) or string.sub(member, -16)
  local text = call('HGET', TASKS, id)
  if not text then return 'ghost', id end
  local t = sound(text)
  if not has_payload(id) then return 'empty', id, t end
  if not t then return 'unreadable', id end
  if index == 'ready' and grouped then
    if member ~= id or not is_in_front(id, t) then return 'worse', id, t end
    return
  end
  local place = places(id, t)[index]
  if not place or place[1] ~= member or not is_at(index, place) then return 'astray', id, t end
end

local function wrong_task(id)
  local text = call('HGET', TASKS, id)
  if not text then return end
  if not is_id(id) then return 'number', id end
  local t = sound(text)
  if not has_payload(id) then return 'empty', id, t end
  if not t then return 'unreadable', id end
  if t.state == 't' and t.owner == NONE then return 'nobody', id, t end
  if t.state == '~' and not timed then return 'endless', id, t end
  if t.state ~= 't' and t.owner ~= NONE then return 'extra', id, t end
  if not timed and (t.due ~= NONE or t.ttl ~= NONE or t.ttr ~= NONE) then return 'extra', id, t end
  if not is_about(t.due, right_due(t)) then return 'due', id, t end
  local missing = {}
  for index, place in pairs(places(id, t)) do
    if index == 'busy' and not is_at(index, place) then
      local other = call('HGET', BUSY, t.utube)
      local taken = other and sound(call('HGET', TASKS, other))
      if taken and taken.state == 't' and taken.utube == t.utube then return 'second', id, t end
    end
    if not is_at(index, place) then missing[#missing + 1] = index end
  end
  if #missing > 0 then
    table.sort(missing)
    return 'orphan', id, t, table.concat(missing, ', ')
  end
  return nil, id, t
end

local function wrong_payload(id)
  if not has_payload(id) or call('HEXISTS', TASKS, id) == 1 then return end
  return is_id(id) and 'lost' or 'number', id
end

local function wrong_front(utube)
  local first = first_in_line({utube = utube}, 1)[1]
  if not first or call('HEXISTS', BUSY, utube) == 1 then return end
  local rule, id, t = wrong_member('line', first)
  if rule == 'unreadable' or rule == 'empty' then return rule, id, t end
  id = string.sub(first, -16)
  if rule or not is_in_front(id, load(id)) then return 'front', id, t or load(id) end
end

-- The highest id in `states` that leads to a task. After a thousand in one state that do not, the next is believed.
local function last_id()
  local last = string.rep('0', 16)
  for _, state in ipairs({'r', 't', '~', '!'}) do
    local before = state .. LAST_DIGIT
    for n = 0, 1000 do
      before = call('ZREVRANGEBYLEX', STATES, '(' .. before, '[' .. state, 'LIMIT', 0, 1)[1]
      local id = before and string.sub(before, 2)
      if not id or id <= last then break end
      if is_id(id) and (n == 1000 or call('HEXISTS', TASKS, id) == 1) then
        last = id
        break
      end
    end
  end
  return last
end

local function wrong_next()
  if call('HEXISTS', META, 'dropped') == 1 then
    local is_there = exists() or call('EXISTS', TASKS, STATES, READY, LINE, BUSY, HELD, BURIED, DUE) > 0
    return is_there and 'undropped' or nil
  end
  local next_id = call('HGET', META, 'next') or ''
  if not is_number(next_id) or tonumber(next_id) <= tonumber(last_id()) then return 'next' end
end

-- A number that can be added to.
local function wrong_count(event)
  local count = call('HGET', CALLS, event)
  if count and (not string.find(count, '^%d+$') or #count > 18 or string.find(count, '^0%d')) then
    return 'uncounted', event
  end
end

local function wrong(where, what)
  if where == 'tasks' and string.sub(what, -1) == '=' then return wrong_payload(string.sub(what, 1, -2)) end
  if where == 'tasks' then return wrong_task(what) end
  if where == 'front' then return wrong_front(what) end
  if where == 'meta' then return wrong_next() end
  if where == 'calls' then return wrong_count(what) end
  return wrong_member(where, what)
end
