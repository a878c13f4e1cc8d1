-- For the doctor: tells what is wrong with some of the things in one of a tube's keys. Writes nothing.
--
-- include tube
-- include tasks
-- include rules
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 where to look: tasks, ready, line, busy, held, buried, due, states, calls; or front, for the head of each
-- sub-queue; or meta, for the next id · 5 where to go on, as the reply before this said; empty at first · 6 about how
-- many things to look at.
-- Reply: where to go on, empty at the end · how many things it looked at · for each wrong thing five texts: what it is,
-- the rule that it breaks (see rules.lua), the task's id, its sub-queue, the indexes it is missing from · for each task
-- that is right and whose payload is JSON: id and size of the payload.
-- Cost: O(log n) for each thing.
local where, after, limit = ARGV[4], ARGV[5], tonumber(ARGV[6])
local found, payloads, seen = {}, {}, 0

local function look(what)
  seen = seen + 1
  local rule, id, t, missing = wrong(where, what)
  if rule then
    local n = #found
    found[n + 1], found[n + 2], found[n + 3] = what, rule, id or ''
    found[n + 4], found[n + 5] = t and t.utube or '', missing or ''
  elseif where == 'tasks' and t and t.kind == 'j' then
    payloads[#payloads + 1] = what
    payloads[#payloads + 1] = call('HSTRLEN', TASKS, what .. '=')
  end
end

-- Goes from sub-queue to sub-queue, however much is in each. An empty member belongs to none, and is never found.
local function look_at_fronts()
  for _ = 1, limit do
    local member = call('ZRANGEBYLEX', LINE, '(' .. after, '+', 'LIMIT', 0, 1)[1]
    if not member then return '' end
    local utube = string.sub(member, 1, -34)
    if in_line(string.sub(member, -16), {utube = utube, pri = string.sub(member, -32, -17)}) == member then
      after = utube .. '\1'
      look(utube)
    else
      after = member
    end
  end
  return after
end

if where == 'front' then
  after = look_at_fronts()
elseif where == 'meta' then
  after = ''
  look('next')
else
  local key = ({tasks = TASKS, calls = CALLS})[where] or INDEXES[where]
  local scan = (where == 'tasks' or where == 'calls' or where == 'busy') and 'HSCAN' or 'ZSCAN'
  local some = call(scan, key, after == '' and '0' or after, 'COUNT', limit)
  after = some[1] == '0' and '' or some[1]
  for n = 1, #some[2], 2 do look(some[2][n]) end
end
return {after, seen, found, payloads}
