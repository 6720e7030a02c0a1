-- Replaces the runs at the beginning of chunks of time buckets by their sums. Runs that were appended after the worker
-- had read the chunk stay behind the sums.
--
-- KEYS     the chunks
-- ARGV     two values for each chunk: the bytes that the worker has read, and the sums that replace them
-- Result   none
--
-- A chunk that no longer begins with these bytes stays as it is: another worker has compacted it, or it was lost.

for i, key in ipairs(KEYS) do
  local bytes_read, sums, stored = ARGV[2 * i - 1], ARGV[2 * i], redis.call('GET', key)
  if stored and string.sub(stored, 1, #bytes_read) == bytes_read then
    redis.call('SET', key, sums .. string.sub(stored, #bytes_read + 1))
  end
end
