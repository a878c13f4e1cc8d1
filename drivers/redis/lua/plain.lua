-- Included before tube.lua by the scripts that are called most. The plainest tubes, whose features are empty, need no
-- more than this, and of their keys the first seven: their order is that of `states`, and nothing is ever due. The eighth,
-- `ready`, never exists there, and so is to them what `never` is to others, see tube.lua.
local META, TASKS, STATES, HELD, SESSIONS, WAITING = unpack(KEYS)
local call = redis.call
local is_plain = ARGV[1] == ''

-- Removes a task if the owner holds it, and notes that; tells whether that was so.
local function ack_plain(changes, id, token, owner, is_wanted)
  local record, payload = token, ''
  if is_wanted == '1' or token == '-' or owner == '-' then
    local stored = call('HGET', TASKS, id)
    local pri, created, attempts, holder, kind =
      string.match(stored or '', '^t (%S+) (%S+) %S+ %- %- %- (%S+) (%S+) (%S+)')
    if not holder or (owner ~= '-' and owner ~= holder) or (token ~= '-' and token ~= attempts) then return false end
    record = '- ' .. pri .. ' ' .. created .. ' ' .. ARGV[2] .. ' - - - ' .. attempts .. ' - ' .. kind .. ' '
    payload = is_wanted == '1' and call('HGET', TASKS, id .. '=') or ''
    token, owner = attempts, holder
  end
  if call('ZREM', HELD, owner .. ' ' .. id .. ' ' .. token) == 0 then return false end
  call('HDEL', TASKS, id, id .. '=')
  call('ZREM', STATES, 't' .. id)
  local n = #changes
  changes[n + 1], changes[n + 2], changes[n + 3], changes[n + 4] = 'ack', id, record, payload
  return true
end
