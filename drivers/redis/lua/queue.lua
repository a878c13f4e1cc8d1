-- Included by every script of a queue: the catalogue of its tubes, its sessions and their connections.
--
-- KEYS, always all of them and in this order; the namespace as their hash tag keeps them in one slot of a Cluster:
--   tubes        hash   name -> JSON: id, order (of creation), after (see open), type, options (times in ms), temporary
--   sessions     hash   session -> "ttr ends", in ms: how long it outlives its last connection, and when it is over;
--                       - while it has connections
--   connections  hash   connection -> "session beat label"; a living process changes its beat every few seconds
--   roll         hash   connection -> "beat absences called every", see call_roll: what the last call noted, when that
--                       was, and the beat interval, in ms
--   last         hash   tube: how many were created · task: the last id that a dropped tube gave, or 0
--
-- Clients draw the ids of sessions and connections, 32 hexadecimal digits, and the numbers of tubes at random: a server
-- that has lost the end of its log knows nothing of those that it lost, and would give them again.
local TUBES, SESSIONS, CONNECTIONS, ROLL, LAST = unpack(KEYS)
local call = redis.call
local NONE = '-'

-- See tube.lua.
local function even_when_full()
  call('HDEL', LAST, '-')
end

-- A number in `last`; nothing if others have put there no number, or one that no id can follow.
local function last(what)
  local stored = call('HGET', LAST, what) or ''
  return #stored <= 15 and string.match(stored, '^%d+$')
end

-- The highest number of that name in the entries of tubes.
local function highest(name)
  local most = 0
  for _, entry in ipairs(call('HVALS', TUBES)) do
    most = math.max(most, tonumber(string.match(entry, '"' .. name .. '":(%d+)') or '0'))
  end
  return string.format('%.0f', most)
end

-- The session of a connection and its beat; nothing if it is not there.
local function read_connection(id)
  local stored = call('HGET', CONNECTIONS, id)
  if stored then return string.match(stored, '^(%S+) (%S+)') end
end

-- The ttr of a session and when it is over; nothing if it is not there, or its entry cannot be read.
local function read_session(id)
  local stored = call('HGET', SESSIONS, id)
  if stored then return string.match(stored, '^(%d+) (%S+)$') end
end

-- Ends the sessions that have no connection any more, after their ttr.
local function end_lonely(now)
  local known = call('HGETALL', CONNECTIONS)
  local has_connection = {}
  for n = 2, #known, 2 do has_connection[string.match(known[n], '^(%S+) %S') or ''] = true end
  local sessions = call('HGETALL', SESSIONS)
  for n = 1, #sessions, 2 do
    local ttr, ends = string.match(sessions[n + 1], '^(%d+) (%S+)$')
    if ends == NONE and not has_connection[sessions[n]] then
      even_when_full()
      call('HSET', SESSIONS, sessions[n], ttr .. ' ' .. string.format('%.0f', now + ttr))
    end
  end
end
