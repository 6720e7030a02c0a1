-- Replaces a delivery of the outbox, unless another process has delivered or dropped the delivery meanwhile.
--
-- KEYS     1 outbox
-- ARGV     1 field  2 delivery as JSON
-- Result   1 if the delivery was replaced, otherwise 0

if not redis.call('HGET', KEYS[1], ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
