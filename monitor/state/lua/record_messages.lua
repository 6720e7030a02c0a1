-- Stores the reported states of the experiments and the messages about their changes, in one write. Nothing is written
-- if another process has stored other states since, if another generation is active, or if this one is being deleted.
--
-- KEYS     1 the key of the active generation's number  2 meta  3 notified  4 outbox
-- ARGV     1 number of the generation  2 the version of the states that must be stored  3 the states as JSON
--          4… field of the outbox, delivery as JSON
-- Result   1 if the states and the messages were written, otherwise 0

local ACTIVE_GENERATION, META, NOTIFIED, OUTBOX = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
if (redis.call('GET', ACTIVE_GENERATION) or '0') ~= ARGV[1] or not redis.call('HGET', META, 'schema') then return 0 end
if (redis.call('HGET', NOTIFIED, 'version') or '0') ~= ARGV[2] then return 0 end
redis.call('HSET', NOTIFIED, 'version', string.format('%d', tonumber(ARGV[2]) + 1), 'states', ARGV[3])
for i = 4, #ARGV, 2 do
  redis.call('HSET', OUTBOX, ARGV[i], ARGV[i + 1])
end
return 1
