-- One batch: compare what the worker believes, then write rows, differences and offsets.
--
-- KEYS  1 meta  2 offsets  3 progress  4 latest  5 hours  6 lanes  7 made  then n2 rows, n3 vectors of integers, n4
--       hashes, n5 indexes, n7 lists, n10 hashes, n11 chunks of time buckets, n8 outboxes, n9 journals, and on the first
--       shard the number of the live generation
-- ARGV  1 expected live generation or "" for none  2 expected run of the server  3 expected seq
--       4 expected number of sweeps  5 expected number of closings  6 what is asked for: 0 all of it; 1 only whether the
--       batch can be applied without a comparison of rows; 2 all but rows, time buckets and what is said to or by other
--       shards, in a transaction that writes these besides, and has counted that a commit was begun: then nothing is
--       compared, and no mark is told  7 how many entries are kept of what commits have made, "" if this one leaves
--       none  8 what it says there (monitor/store/made.py)  9 … fourteen counts n1 … n14, then
--   n1 × (partition, expected offset or "", expected origin, new offset, progress)
--   n13 × (mark, expected number of the commit that last changed rows of that mark, or "")
--   n14 × (field of meta that says up to when rows were swept, time (ms) of the oldest row or event of those that matter)
--   n9 × (field of lanes, expected entry or "", entry, what it says or "": if it is taken back, or written besides)
--   n8 × (field of lanes, what it means for students of another shard, or the entry that says so besides)
--   n2 × (row)                                begins with its version, which follows that of the stored row; of the last n12
--         nothing may be stored
--   n3 × (differences: runs of 2 bytes index of the first integer, 2 bytes how many (32768 more if one of them has an
--         absolute value above 2^51), 8 bytes each)
--   n4 × (field, difference)
--   n5 × (member)                             members of an index, whose score is the number of this commit
--   n6 × (field of latest, ms)
--   n7 × (field of hours, row keys with their lengths)
--   n10 × (field, text)                       fields that always have the same text
--   n11 × (differences as above)              appended: see monitor/engine/delta_runs.py
-- Every key is declared: while a slot moves to another node, a script that needs a key which is not here is refused as a
-- whole (TRYAGAIN) instead of failing half way.
-- Returns {status, seq, {length of each n11}, {marks whose rows others have changed}, for each n8 the entry before, the
-- new entry}, of which a commit that was not applied has but the first two; if asked 1, {0, seq, up to which time (ms) what
-- shards keep of each other may go, the time now, for each n8 the entry before}. 0 applied, 1 the positions have moved, 2 a row
-- has changed, 3 rows were swept that it may rest on, or an experiment is being closed, 4 the server was started again or
-- replaced, 5 another generation is live, or this one is being deleted, 6 rows would have to be compared (if asked 1).

-- A number of Lua holds 53 bits. Terms and sums up to 2^51 say that what was there is below 2^52: all are exact.
local whole = struct.unpack('>i8', '\0\0\1\0\0\0\0\0') == 1099511627776  -- not where C's long has 32 bits
local formats = {}
local function add(sums, changes, begin, count)
  local format = formats[count] or '>' .. string.rep('i8', count)
  formats[count] = format
  local known = {struct.unpack(format, sums)}
  local terms = {struct.unpack(format, changes, begin)}
  for i = 1, count do
    local sum = known[i] + terms[i]
    if sum > 2251799813685248 or sum < -2251799813685248 then
      return nil
    end
    known[i] = sum
  end
  return struct.pack(format, unpack(known, 1, count))
end

local function add_halves(sums, changes, begin, count)
  local format = '>' .. string.rep('i4I4', count)
  local known = {struct.unpack(format, sums)}
  local terms = {struct.unpack(format, changes, begin)}
  for i = 2, 2 * count, 2 do
    local high, low = known[i - 1] + terms[i - 1], known[i] + terms[i]
    if low >= 4294967296 then
      high, low = high + 1, low - 4294967296
    end
    known[i - 1], known[i] = high, low
  end
  return struct.pack(format, unpack(known, 1, 2 * count))
end

local seq = tonumber(redis.call('HGET', KEYS[1], 'seq') or '0')
local asked = ARGV[6]
local n1, n2, n3, n4, n5, n6, n7, n8, n9, n10, n11, n12, n13, n14 = unpack(ARGV, 9, 22)
local first = 23

local marks = first + 5 * n1
local reached = marks + 2 * n13
local receipts = reached + 2 * n14
local sends = receipts + 4 * n9
local rows = sends + 2 * n8
local key = 8
local touched = {}

-- Calls it with the first and the last of each thousand of so many: Lua cannot unpack them all.
local function by_thousands(count, call)
  for begin = 0, count - 1, 1000 do
    call(begin, math.min(begin + 1000, count) - 1)
  end
end

-- Returns fields of a hash, '' where there is none, whose names are every so many arguments.
local function fields(hash, at, count, width)
  local found = {}
  by_thousands(count, function(begin, last)
    local names = {}
    for i = begin, last do names[#names + 1] = ARGV[at + width * i] end
    for i, value in ipairs(redis.call('HMGET', hash, unpack(names))) do found[begin + i] = value or '' end
  end)
  return found
end

-- Sets fields of a hash to the same of their arguments.
local function set(hash, at, count, width, value)
  by_thousands(count, function(begin, last)
    local pairs_, n = {}, 0
    for i = begin, last do
      pairs_[n + 1], pairs_[n + 2] = ARGV[at + width * i], ARGV[at + width * i + value]
      n = n + 2
    end
    redis.call('HSET', hash, unpack(pairs_))
  end)
end

local function refusal()
  local closings, sweeps, schema = unpack(redis.call('HMGET', KEYS[1], 'closings', 'sweeps', 'schema'))
  if not schema or ARGV[1] ~= '' and (redis.call('GET', KEYS[#KEYS]) or '0') ~= ARGV[1] then
    return 5
  end
  if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= ARGV[2] then
    return 4
  end
  local offsets, progress = fields(KEYS[2], first, n1, 5), fields(KEYS[3], first, n1, 5)
  for i = 1, n1 do
    local expected, origin = ARGV[first + 5 * i - 4], ARGV[first + 5 * i - 3]
    if offsets[i] ~= expected
      or expected ~= '' and string.match(progress[i], '^[^:]*:[^:]*:[^:]*:[^:]*:(.*)$') ~= origin then
      return 1
    end
  end
  for i, entry in ipairs(fields(KEYS[6], receipts, n9, 4)) do
    if entry ~= ARGV[receipts + 4 * i - 3] then
      return 1
    end
  end
  if (closings or '0') ~= ARGV[5] then
    return 3
  end
  local swept = (sweeps or '0') ~= ARGV[4]
  if swept then
    for i, boundary in ipairs(fields(KEYS[1], reached, n14, 2)) do
      if boundary ~= '' and tonumber(boundary) > tonumber(ARGV[reached + 2 * i - 1]) then
        return 3
      end
    end
  end
  if seq == tonumber(ARGV[3]) then
    return nil
  end
  for at = marks, reached - 1, 2 do
    if (redis.call('HGET', KEYS[1], 'mark:' .. ARGV[at]) or '') ~= ARGV[at + 1] then
      touched[#touched + 1] = tonumber(ARGV[at])
    end
  end
  if swept and #touched > 0 and receipts > reached then
    -- A row may have been moved to before the boundary, deleted, and made anew with the version that is expected.
    return 3
  end
  if asked == '1' and #touched > 0 then
    return 6
  end
  local changed = n2 - n12
  for i = 0, #touched > 0 and changed - 1 or -1, 500 do
    -- Whole rows of some at once: that is less than a command for four bytes of each.
    local held = redis.call('MGET', unpack(KEYS, key + i, key + math.min(i + 500, changed) - 1))
    for j, row in ipairs(held) do
      -- After the largest count of 24 bits follows 1: 0 is that of a row that is not there.
      local version = struct.unpack('>I4', ARGV[rows + i + j - 1])
      local before = version % 16777216 == 1 and version + 16777214 or version - 1
      if not row or struct.unpack('>I4', row) ~= before then
        return 2
      end
    end
  end
  for i = changed, n2 - 1, 500 do
    if redis.call('EXISTS', unpack(KEYS, key + i, key + math.min(i + 500, n2) - 1)) > 0 then
      return 2
    end
  end
end

-- If the transaction is executed, nothing has changed since the answer.
local status = asked ~= '2' and refusal()
if status then
  return {status, seq}
end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local oldest = string.format('%.0f', now - 30000)
if asked == '1' then
  return {0, seq, oldest, now, unpack(fields(KEYS[6], sends, n8, 2))}
end

-- One more is begun at the first write than are done until the last one: see RedisStore.state.
if asked == '0' then
  redis.call('HINCRBY', KEYS[1], 'begun', 1)
end
seq = seq + 1
set(KEYS[2], first, n1, 5, 3)
set(KEYS[3], first, n1, 5, 4)
for at = marks, reached - 1, 2 do
  redis.call('HSET', KEYS[1], 'mark:' .. ARGV[at], seq)
end

local names, values, shift, last = KEYS, ARGV, rows - key, key + n2 - 1
for begin = key, last, 2000 do
  local pairs_, n = {}, 0
  for place = begin, math.min(begin + 1999, last) do
    pairs_[n + 1], pairs_[n + 2] = names[place], values[place + shift]
    n = n + 2
  end
  redis.call('MSET', unpack(pairs_))
end
key = last + 1
local at = rows + n2
for _ = 1, n3 do
  local changes, position = ARGV[at], 1
  while position <= #changes do
    local first, count, begin = struct.unpack('>I2I2', changes, position)
    local wide = count >= 32768
    if wide then count = count - 32768 end
    local size = 8 * count
    local sums = redis.call('GETRANGE', KEYS[key], 8 * first, 8 * first + size - 1)
    if sums == '' then
      sums = string.sub(changes, begin, begin + size - 1)
    else
      if #sums < size then sums = sums .. string.rep('\0', size - #sums) end
      sums = whole and not wide and add(sums, changes, begin, count) or add_halves(sums, changes, begin, count)
    end
    redis.call('SETRANGE', KEYS[key], 8 * first, sums)
    position = begin + size
  end
  key, at = key + 1, at + 1
end
for _ = 1, n4 do
  redis.call('HINCRBY', KEYS[key], ARGV[at], ARGV[at + 1])
  key, at = key + 1, at + 2
end
for _ = 1, n5 do
  redis.call('ZADD', KEYS[key], seq, ARGV[at])
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
  -- The sweep takes an hour out only where it finds no list: one that is not new is there.
  if redis.call('RPUSH', KEYS[key], ARGV[at + 1]) == 1 then
    redis.call('HSET', KEYS[5], ARGV[at], 1)
  end
  key, at = key + 1, at + 2
end
for _ = 1, n10 do
  redis.call('HSET', KEYS[key], ARGV[at], ARGV[at + 1])
  key, at = key + 1, at + 2
end
local lengths = {}
for i = 1, n11 do
  lengths[i] = redis.call('APPEND', KEYS[key], ARGV[at])
  key, at = key + 1, at + 1
end
local result = {0, seq, lengths, touched}
for place = sends, rows - 1, 2 do
  local before, entry = redis.call('HGET', KEYS[6], ARGV[place]) or '', ARGV[place + 1]
  if asked == '0' then
    entry = redis.call('XADD', KEYS[key], 'MINID', '~', oldest, '*', 'p', before, 'c', entry)
  end
  redis.call('HSET', KEYS[6], ARGV[place], entry)
  result[#result + 1], result[#result + 2] = before, entry
  key = key + 1
end
for taken = receipts, sends - 1, 4 do
  redis.call('HSET', KEYS[6], ARGV[taken], ARGV[taken + 2])
  if ARGV[taken + 3] ~= '' then
    redis.call(
      'XADD', KEYS[key], 'MINID', '~', oldest, '*', 'i', ARGV[taken + 2], 'p', ARGV[taken + 1], 'c', ARGV[taken + 3]
    )
  end
  key = key + 1
end
if ARGV[7] ~= '' then
  -- Last, so that nobody believes it of a commit that has failed. Where it may not be said, others look for their rows.
  redis.pcall('XADD', KEYS[7], 'MAXLEN', '~', ARGV[7], seq .. '-0', 'n', ARGV[8])
end
redis.call('HSET', KEYS[1], 'seq', seq)
return result
