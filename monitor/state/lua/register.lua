-- Assigns the next number to an experiment, unless the experiment is stored already.
--
-- KEYS     1 meta  2 definitions
-- ARGV     1 name of the experiment  2 its definitions as JSON
-- Result   none

local DEFINITIONS, NAME, DEFINITION = KEYS[2], ARGV[1], ARGV[2]
if not redis.call('HGET', DEFINITIONS, NAME) then
  local number = redis.call('HINCRBY', KEYS[1], 'experiments', 1)
  redis.call('HSET', DEFINITIONS, NAME, string.format('{"definitions": %s, "number": %d}', DEFINITION, number))
end
