-- Puts what the runs of chunks of time buckets add up to in their place, and behind it what others have appended since.
--
-- KEYS  the chunks
-- ARGV  1 expected run of the server, then for each chunk its head, how many bytes were read of it, and as runs what
--       those amount to
-- A chunk with another head was summed up or begun anew by somebody else, and another run of the server may have lost
-- what was read. All others have only been appended to.

if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= ARGV[1] then
  return
end
for i, key in ipairs(KEYS) do
  local head, known, sums = ARGV[3 * i - 1], tonumber(ARGV[3 * i]), ARGV[3 * i + 1]
  local stored = redis.call('GET', key)
  if stored and string.sub(stored, 1, 8) == head then
    local begun, times = struct.unpack('>I4I4', head)
    redis.call('SET', key, struct.pack('>I4I4', begun, times + 1) .. sums .. string.sub(stored, known + 1))
  end
end
