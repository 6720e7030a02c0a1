-- One batch: compare what the worker believes, then write rows, differences and offsets.
--
-- KEYS  1 meta  2 offsets  3 progress  4 latest  5 hours  6 lanes  then, in the order of ARGV,
--       n2 rows, n3 vectors of integers, n4 + n5 hashes, n7 lists, n8 outboxes, n9 journals, n10 hashes,
--       and on the first shard the number of the live generation
-- ARGV  1 expected live generation or "" for none  2 expected run of the server  3 expected seq
--       4 expected number of sweeps  5 versions of the rows (4 bytes each)  6 … ten counts n1 … n10, then
--   n1 × (partition, expected offset or "", expected origin, new offset, progress)
--   n2 × (row)
--   n3 × (differences: runs of 2 bytes index of the first integer, 2 bytes how many, 8 bytes each)
--   n4 × (field, difference)
--   n5 × (field)                              fields that take the number of this commit
--   n6 × (field of latest, ms)
--   n7 × (field of hours, row keys with their lengths, how many)
--   n8 × (field of lanes, what it means for students of another shard)
--   n9 × (field of lanes, expected entry or "", entry, what it says or "" if it is taken back)
--   n10 × (field, text)                       fields that always have the same text
-- Every key is declared: while a slot moves to another node, a script that needs a key which is not here is refused as a
-- whole (TRYAGAIN) instead of failing half way.
-- Returns {status, seq, for each n8 the entry before, the new entry}: 0 applied, 1 the positions have moved, 2 a row has
-- changed, 3 rows were swept, 4 the server was started again or replaced, 5 another generation is live, or
-- this one is being deleted.

local seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
local n1, n2, n3, n4, n5, n6, n7, n8, n9, n10 = unpack(ARGV, 6, 15)
local first = 16

if ARGV[1] ~= '' and (redis.call('GET', KEYS[#KEYS]) or '0') ~= ARGV[1] then
  return {5, seq}
end
if not redis.call('HGET', KEYS[1], 'schema') then
  return {5, seq}
end
if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= ARGV[2] then
  return {4, seq}
end
for i = 0, n1 - 1 do
  local at = first + 5 * i
  if (redis.call('HGET', KEYS[2], ARGV[at]) or '') ~= ARGV[at + 1] then
    return {1, seq}
  end
  if ARGV[at + 1] ~= '' then
    local origin = string.match(redis.call('HGET', KEYS[3], ARGV[at]), '^[^:]*:[^:]*:[^:]*:[^:]*:(.*)$')
    if origin ~= ARGV[at + 2] then
      return {1, seq}
    end
  end
end
local rows = first + 5 * n1
local receipts = rows + n2 + n3 + 2 * n4 + n5 + 2 * n6 + 3 * n7 + 2 * n8
for i = 0, n9 - 1 do
  local at = receipts + 4 * i
  if (redis.call('HGET', KEYS[6], ARGV[at]) or '') ~= ARGV[at + 1] then
    return {1, seq}
  end
end
if (redis.call('HGET', KEYS[1], 'sweeps') or '0') ~= ARGV[4] then
  return {3, seq}
end

local key = 7
if seq ~= tonumber(ARGV[3]) then
  local missing = '\0\0\0\0'
  for i = 0, n2 - 1 do
    local version = redis.call('GETRANGE', KEYS[key + i], 0, 3)
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
  local at = first + 5 * i
  redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 3])
  redis.call('HSET', KEYS[3], ARGV[at], ARGV[at + 4])
end

local at = rows
for _ = 1, n2, 2000 do
  local pairs_, n = {}, 0
  while n < 4000 and at < rows + n2 do
    pairs_[n + 1], pairs_[n + 2] = KEYS[key], ARGV[at]
    key, at, n = key + 1, at + 1, n + 2
  end
  redis.call('MSET', unpack(pairs_))
end
local formats = {}
for _ = 1, n3 do
  local changes, position = ARGV[at], 1
  while position <= #changes do
    local first, count
    first, count, position = struct.unpack('>I2I2', changes, position)
    local size = 8 * count
    local sums = redis.call('GETRANGE', KEYS[key], 8 * first, 8 * first + size - 1)
    if sums == '' then
      sums = string.sub(changes, position, position + size - 1)
    else
      -- A number of Lua holds 53 bits, so each integer is added in halves.
      local format = formats[count] or '>' .. string.rep('i4I4', count)
      formats[count] = format
      local known = {struct.unpack(format, sums .. string.rep('\0', size - #sums))}
      local terms = {struct.unpack(format, changes, position)}
      for i = 2, 2 * count, 2 do
        local high, low = known[i - 1] + terms[i - 1], known[i] + terms[i]
        if low >= 4294967296 then
          high, low = high + 1, low - 4294967296
        end
        known[i - 1], known[i] = high, low
      end
      sums = struct.pack(format, unpack(known, 1, 2 * count))
    end
    redis.call('SETRANGE', KEYS[key], 8 * first, sums)
    position = position + size
  end
  key, at = key + 1, at + 1
end
for _ = 1, n4 do
  redis.call('HINCRBY', KEYS[key], ARGV[at], ARGV[at + 1])
  key, at = key + 1, at + 2
end
for _ = 1, n5 do
  redis.call('HSET', KEYS[key], ARGV[at], seq)
  key, at = key + 1, at + 1
end
for _ = 1, n6 do
  local known = redis.call('HGET', KEYS[4], ARGV[at])
  if not known or tonumber(known) < tonumber(ARGV[at + 1]) then
    redis.call('HSET', KEYS[4], ARGV[at], ARGV[at + 1])
  end
  at = at + 2
end
for _ = 1, n7 do
  redis.call('RPUSH', KEYS[key], ARGV[at + 1])
  redis.call('HINCRBY', KEYS[5], ARGV[at], ARGV[at + 2])
  key, at = key + 1, at + 3
end
local result = {0, seq}
if n8 + n9 > 0 then
  local oldest = string.format('%.0f', redis.call('TIME')[1] * 1000 - 30000)
  for _ = 1, n8 do
    local before = redis.call('HGET', KEYS[6], ARGV[at]) or ''
    local entry = redis.call('XADD', KEYS[key], 'MINID', '~', oldest, '*', 'p', before, 'c', ARGV[at + 1])
    redis.call('HSET', KEYS[6], ARGV[at], entry)
    result[#result + 1], result[#result + 2] = before, entry
    key, at = key + 1, at + 2
  end
  for _ = 1, n9 do
    redis.call('HSET', KEYS[6], ARGV[at], ARGV[at + 2])
    if ARGV[at + 3] ~= '' then
      redis.call('XADD', KEYS[key], 'MINID', '~', oldest, '*', 'i', ARGV[at + 2], 'p', ARGV[at + 1], 'c', ARGV[at + 3])
    end
    key, at = key + 1, at + 4
  end
end
for _ = 1, n10 do
  redis.call('HSET', KEYS[key], ARGV[at], ARGV[at + 1])
  key, at = key + 1, at + 2
end
redis.call('HSET', KEYS[1], 'seq', seq)
return result
