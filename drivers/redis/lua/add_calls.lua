-- Adds to the counts of calls. A count that is no number is passed over, until the doctor removes it.
--
-- include tube
-- KEYS: those of a tube, see tube.lua.
-- ARGV: then pairs of an event and how often.
-- Reply: 1.
-- Cost: O(1) each.
if not exists() then return 1 end
even_when_full()
for n = 4, #ARGV, 2 do
  local added = redis.pcall('HINCRBY', CALLS, ARGV[n], ARGV[n + 1])
  local failed = type(added) == 'table' and added.err
  if failed and not string.find(failed, 'not an integer') and not string.find(failed, 'overflow') then return added end
end
return 1
