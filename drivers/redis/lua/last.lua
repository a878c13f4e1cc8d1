-- For the doctor: tells which values in the key last are no numbers, and sets one of them right.
--
-- include queue
-- KEYS: those of a queue, see queue.lua.
-- ARGV: 1 the one to set, tube or task, to the highest in the entries of tubes; empty to look only.
-- Reply: those that were no numbers before that.
-- Cost: O(tubes).
local wrong = {}
for what, name in pairs({tube = 'order', task = 'after'}) do
  if call('HEXISTS', LAST, what) == 1 and not last(what) then
    wrong[#wrong + 1] = what
    if ARGV[1] == what then
      even_when_full()
      call('HSET', LAST, what, highest(name))
    end
  end
end
return wrong
