-- Returns what a shard stores of itself: meta, positions, number of the live generation, run id of the server.
--
-- KEYS  1 meta  2 positions  3 number of the live generation, on the first shard
-- One script and no transaction: a cluster's clients cannot ask for the server's run within one.

return {
  redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]), KEYS[3] and redis.call('GET', KEYS[3]) or false,
  string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'),
}
