-- Applies one batch: compares what the worker believed, then writes rows, adds differences and moves the positions.
-- Nothing can fail after the first write: every value was bounded and every type fixed by the worker.
--
-- KEYS  1 meta  2 offsets  3 progress  4 latest  5 hours  6 number of the live generation
-- ARGV  1 expected live generation  2 expected run of the server  3 expected seq  4 expected number of sweeps
--       5 versions of the rows (4 bytes each)  6 … seven counts n1 … n7, then
--   n1 × (partition, expected offset or "", new offset, progress)
--   n2 × (row key, row)
--   n3 × (key of a vector of integers, differences: 2 bytes index, 8 bytes difference)
--   n4 × (hash key, field, difference)
--   n5 × (hash key, field)                    fields that take the number of this commit
--   n6 × (field of latest, ms)
--   n7 × (list key, field of hours, row keys with their lengths, how many)
-- Returns {status, seq}: 0 applied, 1 the positions have moved, 2 a row has changed, 3 rows were swept, 4 the server was
-- started again or replaced, 5 another generation is live.

local seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
local n1, n2, n3, n4, n5, n6, n7 = unpack(ARGV, 6, 12)
local first = 13

if (redis.call('GET', KEYS[6]) or '0') ~= ARGV[1] then
  return {5, seq}
end
if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= ARGV[2] then
  return {4, seq}
end
for i = 0, n1 - 1 do
  local at = first + 4 * i
  if (redis.call('HGET', KEYS[2], ARGV[at]) or '') ~= ARGV[at + 1] then
    return {1, seq}
  end
end
if (redis.call('HGET', KEYS[1], 'sweeps') or '0') ~= ARGV[4] then
  return {3, seq}
end

local rows = first + 4 * n1
if seq ~= tonumber(ARGV[3]) then
  local missing = '\0\0\0\0'
  for i = 0, n2 - 1 do
    local version = redis.call('GETRANGE', ARGV[rows + 2 * i], 0, 3)
    if version == '' then version = missing end
    if version ~= string.sub(ARGV[5], 4 * i + 1, 4 * i + 4) then
      return {2, seq}
    end
  end
end

-- One more is begun at the first write than are done until the last one: see RedisStore.state.
redis.call('HINCRBY', KEYS[1], 'begun', 1)
seq = seq + 1
for i = 0, n1 - 1 do
  local at = first + 4 * i
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 2])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 3])
end

local last = rows + 2 * n2 - 1
for at = rows, last, 4000 do
  redis.call('MSET', unpack(ARGV, at, math.min(at + 3999, last)))
end

local at = last + 1
for _ = 1, n3 do
  local key, differences, position = ARGV[at], ARGV[at + 1], 1
  while position <= #differences do
    local args, n = {}, 0
    while position <= #differences and n < 4000 do
      local index, difference
      index, difference, position = struct.unpack('>I2l', differences, position)
      args[n + 1], args[n + 2], args[n + 3], args[n + 4] = 'INCRBY', 'i64', '#' .. index, string.format('%.0f', difference)
      n = n + 4
    end
    redis.call('BITFIELD', key, unpack(args))
  end
  at = at + 2
end
for _ = 1, n4 do
  redis.call('HINCRBY', ARGV[at], ARGV[at + 1], ARGV[at + 2])
  at = at + 3
end
for _ = 1, n5 do
  redis.call('HSET', ARGV[at], ARGV[at + 1], seq)
  at = at + 2
end
for _ = 1, n6 do
  local known = redis.call('HGET', KEYS[4], ARGV[at])
  if not known or tonumber(known) < tonumber(ARGV[at + 1]) then
    redis.call('HSET', KEYS[4], ARGV[at], ARGV[at + 1])
  end
  at = at + 2
end
for _ = 1, n7 do
  redis.call('RPUSH', ARGV[at], ARGV[at + 2])
  redis.call('HINCRBY', KEYS[5], ARGV[at + 1], ARGV[at + 3])
  at = at + 4
end
redis.call('HSET', KEYS[1], 'seq', seq)
return {0, seq}
