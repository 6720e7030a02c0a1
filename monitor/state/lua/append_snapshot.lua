-- Keeps the snapshot of an hour; whoever comes second changes nothing, and neither does anybody whose generation is
-- being deleted.
--
-- KEYS  1 meta  2 history
-- ARGV  1 hour  2 snapshot

if redis.call('HGET', KEYS[1], 'schema') then
  redis.call('HSETNX', KEYS[2], ARGV[1], ARGV[2])
end
