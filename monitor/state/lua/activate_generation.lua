-- Makes a generation the active one, and adds to its counts of lost events.
--
-- KEYS     1 the key of the active generation's number  2 events_lost of the new generation
-- ARGV     1 number of the generation that must be active  2 number of the new generation
--          3… field of events_lost, events to add
-- Result   1, or 0 if another generation is active; then nothing was written

local ACTIVE_GENERATION, EVENTS_LOST, EXPECTED, NEW = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
if (redis.call('GET', ACTIVE_GENERATION) or '0') ~= EXPECTED then return 0 end
for i = 3, #ARGV, 2 do redis.call('HINCRBY', EVENTS_LOST, ARGV[i], ARGV[i + 1]) end
redis.call('SET', ACTIVE_GENERATION, NEW)
return 1
