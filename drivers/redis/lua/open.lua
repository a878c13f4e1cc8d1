-- Makes a tube ready for use where it is not.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: 4 the last id that tubes gave which were dropped before this one was made: ids never come again.
-- Reply: 1, or 0 where it was dropped.
-- Cost: O(1).
if call('HEXISTS', META, 'dropped') == 1 then return 0 end
even_when_full()
call('HSETNX', META, 'next', plus(ARGV[4], 1))
return 1
