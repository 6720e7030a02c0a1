-- Stores the snapshot of an hour, unless the hour has a snapshot already or the generation is being deleted.
--
-- KEYS     1 meta  2 hourly_snapshots
-- ARGV     1 hour  2 snapshot
-- Result   none

if redis.call('HGET', KEYS[1], 'schema') then
  redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
end
