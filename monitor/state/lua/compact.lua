-- Puts what the runs of chunks of time buckets add up to in their place, and behind it what has been appended since.
--
-- KEYS  the chunks
-- ARGV  for each what was read of it, and what that amounts to
-- A chunk that does not begin so any more was summed up, begun anew or lost by somebody else, and stays as it is.

for i, key in ipairs(KEYS) do
  local read, stored = ARGV[2 * i - 1], redis.call('GET', key)
  if stored and string.sub(stored, 1, #read) == read then
    redis.call('SET', key, ARGV[2 * i] .. string.sub(stored, #read + 1))
  end
end
