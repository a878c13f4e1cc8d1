-- Makes a tube ready for use where it is not.
--
-- include tube
-- Reply: 1, or 0 where it was dropped.
-- Cost: O(1).
if call('HEXISTS', META, 'dropped') == 1 then return 0 end
call('HSETNX', META, 'last', '0')
return 1
