-- Gives an experiment that the store does not know the next number; whoever comes second changes nothing.
--
-- KEYS  1 meta  2 definitions
-- ARGV  1 name of the experiment  2 its definitions as JSON

if not redis.call('HGET', KEYS[2], ARGV[1]) then
  local number = redis.call('HINCRBY', KEYS[1], 'experiments', 1)
  redis.call('HSET', KEYS[2], ARGV[1], string.format('{"definitions": %s, "number": %d}', ARGV[2], number))
end
