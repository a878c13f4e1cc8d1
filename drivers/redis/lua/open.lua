-- Makes a tube ready for use, if it is not.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the last id given by tubes that were dropped before this one was made: ids never come again · 5 1
-- if it was made before, for a queue on another store: if it is lost, nobody knows which ids it gave, and
-- they go on after the time in ms.
-- Reply: 1, or 0 if it was dropped.
-- Cost: O(1).
if call('HEXISTS', META, 'dropped') == 1 then return 0 end
even_when_full()
call('HSETNX', META, 'next', plus(ARGV[5] == '1' and math.max(ARGV[4], server_ms()) or ARGV[4], 1))
return 1
