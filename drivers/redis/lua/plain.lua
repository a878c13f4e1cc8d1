-- Included before tube.lua by the scripts that are called most. The plainest tubes, whose features are empty, need no
-- more than this: their order is that of `states`, and nothing is ever due.
local META, TASKS, STATES, _, _, _, HELD, _, _, SESSIONS, _, WAITING = unpack(KEYS)
local call = redis.call
local is_plain = ARGV[1] == ''

-- Removes a task if the owner holds it, and notes that; tells whether that was so.
local function ack_plain(changes, id, token, owner, is_wanted)
  local stored = call('HGET', TASKS, id)
  if not stored then return false end
  local pri, created, attempts, holder, kind = string.match(stored, '^t (%S+) (%S+) %S+ %- %- %- (%S+) (%S+) (%S+)')
  if not holder or (owner ~= '-' and owner ~= holder) or (token ~= '-' and token ~= attempts) then return false end
  local n = #changes
  changes[n + 1], changes[n + 2] = 'ack', id
  changes[n + 3] = table.concat({'-', pri, created, ARGV[2], '- - -', attempts, '-', kind, ''}, ' ')
  changes[n + 4] = is_wanted == '1' and call('HGET', TASKS, id .. '=') or ''
  call('HDEL', TASKS, id, id .. '=')
  call('ZREM', STATES, 't' .. id)
  call('ZREM', HELD, holder .. id)
  return true
end

-- Takes up to `limit` ready tasks for a session, and notes that.
local function take_plain(changes, owner, limit)
  for _, member in ipairs(call('ZRANGEBYLEX', STATES, '[r', '(r:', 'LIMIT', 0, limit)) do
    local id = string.sub(member, 2)
    local stored = call('HMGET', TASKS, id, id .. '=')
    local pri, created, attempts, kind =
      string.match(stored[1], '^r (%S+) (%S+) %S+ %- %- %- (%S+) %- (%S+)')
    local record = table.concat(
      {'t', pri, created, ARGV[2], '- - -', string.format('%.0f', attempts + 1), owner, kind, ''}, ' ')
    call('ZREM', STATES, member)  -- before what adds, see even_when_full
    call('HSET', TASKS, id, record)
    call('ZADD', STATES, 0, 't' .. id)
    call('ZADD', HELD, 0, owner .. id)
    local n = #changes
    changes[n + 1], changes[n + 2], changes[n + 3], changes[n + 4] = 'take', id, record, stored[2]
  end
end
