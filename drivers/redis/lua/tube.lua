-- Included by every script of a tube: its keys, and the calls to processes that wait.
--
-- KEYS, all of them and in this order, except that plain.lua needs fewer; the tube's hash tag keeps them in one slot of
-- a Cluster:
--   meta      hash     next: the id of the next task · run: the server's run, in a temporary tube · dropped: when it was;
--                      gave: the last id before that
--   tasks     hash     id -> record · id .. = -> payload, as it was put
--   states    zset     score 0, state .. id: every task, by state and id
--   held      zset     score 0, "owner id attempts": the taken tasks, by session, each with its token
--   sessions  set      sessions that may take here, see admit
--   waiting   zset     score ms since the epoch, process: who waits for tasks, and until when that is believed
--   bell      list     one element for each of these that is called; they wait in BLPOP
--   ready     zset     score pri, id: what a take looks at, in order. In grouped tubes the heads of free sub-queues
--                      only; in tubes without priority or groups it is empty, and the order is that of `states`
--   line      zset     score 0, utube .. NUL .. pri .. id: all ready tasks of a grouped tube, by sub-queue
--   busy      hash     utube -> id of the task that is taken, in a grouped tube
--   buried    zset     score pri, id: the buried tasks of a tube with priority, in the order of a kick
--   due       zset     score ms since the epoch, id: when a task is next due
--   calls     hash     event -> how often
--   seeking   zset     as `waiting`, of puts that wait for room
--   room      list     as `bell`, for these
-- and after these `never`, which does not exist. While a Cluster moves a slot, a node refuses a script that names a
-- missing key. A script whose keys all exist it runs, and breaks off in the middle if that uses a key again which it
-- has emptied, and which therefore is gone.
--
-- An id is sixteen decimal digits, so that ids sort as text. A record is text: state pri created updated due ttl ttr
-- attempts owner kind utube, with one space between; times in ms, - for none; kind is j (the payload is JSON) or b
-- (bytes); the sub-queue's name comes last, since it may contain spaces.
--
-- ARGV of every script begin with: 1 the tube's features, of t(imed) p(riority) g(rouped) b(ounded) n(ewest first);
-- 2 now, in ms; 3 how many consumers wait in the caller's own process, which wakes them itself.
--
-- An error NOTUBE: the tube was dropped. NOSESSION: this session must be admitted first.
local META, TASKS, STATES, HELD, SESSIONS, WAITING, BELL, READY, LINE, BUSY, BURIED, DUE, CALLS, SEEKING, ROOM =
  unpack(KEYS)
local features, now, here = ARGV[1], ARGV[2], tonumber(ARGV[3])
local call = redis.call
local NONE, LAST_DIGIT, AFTER_SPACE = '-', ':', '!'

local function exists()
  return call('HEXISTS', META, 'next') == 1
end

-- A server whose memory is full refuses a script's first write if that may add something, but no write after it. Only a
-- put should be refused then, as a whole: what is there must still be taken, finished and rescued. So every other
-- script begins with a removal, if only of nothing.
local function even_when_full()
  call('HDEL', META, '-')
end

-- Lua itself prints only fourteen digits of a number.
local function plus(a, b)
  return string.format('%.0f', a + b)
end

-- The server's own clock, for what a test's clock must not touch.
local function server_ms()
  local time = call('TIME')
  return time[1] .. string.sub('00000' .. time[2], -6, -4)
end

-- Calls up to `count` of the processes that wait, each once. A list holds no more elements than processes wait.
local function ring(who, bell, count)
  if count <= 0 or call('ZCARD', who) == 0 then return end
  call('ZREMRANGEBYSCORE', who, '-inf', server_ms())
  local free = call('ZCARD', who) - call('LLEN', bell)
  for _ = 1, math.min(count, free) do
    call('LPUSH', bell, 1)
  end
end

local waking, freed = 0, 0

-- Calls those that have something to do now.
local function ring_all()
  ring(WAITING, BELL, waking - here)
  ring(SEEKING, ROOM, freed)
end
