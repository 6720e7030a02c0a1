-- Returns what a shard says of itself: meta, offsets, progress, lanes, number of the live generation, run of the server.
--
-- KEYS  1 meta  2 offsets  3 progress  4 lanes  5 number of the live generation, on the first shard
-- One script and no transaction: a cluster's clients cannot ask for the server's run within one.

return {
  redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]), redis.call('HGETALL', KEYS[3]),
  redis.call('HGETALL', KEYS[4]), KEYS[5] and redis.call('GET', KEYS[5]) or false,
  string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'),
}
