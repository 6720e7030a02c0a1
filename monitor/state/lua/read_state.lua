-- Reads the state of a shard. This is a script, because clients of a cluster cannot send INFO within a transaction.
--
-- KEYS     1 meta  2 positions  3 the key of the active generation's number (on the first shard only)
-- Result   {meta, positions, number of the active generation or nil, run id of the server}

return {
  redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2]), KEYS[3] and redis.call('GET', KEYS[3]) or false,
  string.match(redis.call('INFO', 'server'), 'run_id:(%x+)'),
}
