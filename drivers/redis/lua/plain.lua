-- Included before tube.lua by the scripts that are called most. The plainest tubes, those without features, need only
-- this and the first seven of their keys: their order is that of `states`, and nothing is ever due. The eighth key,
-- `ready`, never exists there, and so does for them what `never` does for others, see tube.lua.
local META, TASKS, STATES, HELD, SESSIONS, WAITING = unpack(KEYS)
local call = redis.call
local is_plain = ARGV[1] == ''

-- Removes a task if the owner holds it, and notes the change; tells whether it did.
local function ack_plain(changes, id, token, owner, is_wanted)
  local record, payload = token, ''
  if is_wanted == '1' or token == '-' or owner == '-' then
    local stored = call('HGET', TASKS, id)
    local pri, created, attempts, holder, kind =
      string.match(stored or '', '^t (%S+) (%S+) %S+ %- %- %- (%S+) (%S+) (%S+)')
    if not holder or (owner ~= '-' and owner ~= holder) or (token ~= '-' and token ~= attempts) then
      call('HDEL', META, '-')  -- see denied in tasks.lua; what follows begins with a write anyway
      return false
    end
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
