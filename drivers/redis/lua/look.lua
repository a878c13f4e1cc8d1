-- Tells, without a write, whether a take would find a ready task, and when the next thing is due.
--
-- include tube
-- include tasks
-- KEYS: those of a tube, see tube.lua.
-- ARGV: no more.
-- Reply: 1 or 0, and an instant in ms, or an empty text.
-- Cost: O(log n).
if not exists() then return redis.error_reply('NOTUBE it was dropped') end
return {#in_order('r', 1), call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or ''}
