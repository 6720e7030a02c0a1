-- Applies one batch to one shard: first compares what the worker assumes with what is stored, then writes everything.
--
-- KEYS     1 meta  2 positions  3 latest  4 hours, then the keys of the blocks in their order, and last, if the header
--          names the live generation (on the first shard), the key that holds its number
-- ARGV[1]  header, a MessagePack map:
--            run         run id of the server that the worker has read its state from
--            live        number of the live generation, or false
--            commits, sweeps, closings   the store's counters when the worker read its state
--            positions   list of {partition, offset (expected, or false for none), origin (expected), position (new)}
--            dependencies  field of meta that stores up to when rows were swept → time (ms) of the oldest row or event
--                        that the batch depends on
--            latest      field of latest → time (ms)
--            blocks      name of a block → number of its keys
-- ARGV[2…] the values of the blocks in their order, key by key:
--            new_rows  a row that must not be stored yet
--            rows      a row; its first four bytes are its version, one more than the stored row's
--            sums      what is added to a vector of integers: runs of 2 bytes index of the first integer, 2 bytes how
--                      many (32768 more if one of them has an absolute value above 2^51), 8 bytes each
--            chunks    runs that are appended to a chunk of time buckets
--            counters  field of a hash, difference
--            members   member of an index, whose score becomes the number of this commit
--            hours     field of hours, names of new rows with their lengths
--            texts     field of a hash, text
--
-- Returns {status, number of commits, {length of each chunk}}. The status is
--   applied    everything was written
--   switched   another generation is live, or this one is being deleted
--   restarted  the server was started again or replaced: it may have lost writes
--   moved      another worker has applied records of these partitions
--   swept      rows were deleted that the batch may depend on, or an experiment is being closed
--   changed    another worker has changed a row of this batch
-- and nothing was written unless it is "applied". Every key is declared: while a slot moves to another node of a
-- cluster, a script that needs a key which is not there is refused as a whole instead of failing half way.

local BLOCKS = {
  {'new_rows', 1}, {'rows', 1}, {'sums', 1}, {'chunks', 1}, {'counters', 2}, {'members', 1}, {'hours', 2}, {'texts', 2},
}
local FIRST_KEY, FIRST_VALUE = 5, 2
local AT_ONCE = 1000  -- keys or fields of one command: Lua cannot unpack more than some thousand values
local META, POSITIONS, LATEST, HOURS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local header = cmsgpack.unpack(ARGV[1])
local commits = tonumber(redis.call('HGET', META, 'seq') or '0')

local blocks, key, value = {}, FIRST_KEY, FIRST_VALUE
for _, block in ipairs(BLOCKS) do
  local name, width = unpack(block)
  local count = header.blocks[name]
  blocks[name] = {key = key, value = value, width = width, count = count}
  key, value = key + count, value + width * count
end

-- Calls `write` with the key and the first value of each entry of a block, and that value's place in ARGV.
local function for_each(name, write)
  local block = blocks[name]
  for i = 0, block.count - 1 do
    local place = block.value + block.width * i
    write(KEYS[block.key + i], ARGV[place], ARGV[place + 1])
  end
end

-- Calls `act` with the first and the last place of each thousand entries of a block.
local function by_thousands(block, act)
  for begin = 0, block.count - 1, AT_ONCE do
    if act(begin, math.min(begin + AT_ONCE, block.count) - 1) then
      return true
    end
  end
end

-- Returns whether another worker has made or changed a row of this batch.
local function rows_changed()
  local new, changed = blocks.new_rows, blocks.rows
  return by_thousands(new, function(first, last)
    return redis.call('EXISTS', unpack(KEYS, new.key + first, new.key + last)) > 0
  end) or by_thousands(changed, function(first, last)
    for i, stored in ipairs(redis.call('MGET', unpack(KEYS, changed.key + first, changed.key + last))) do
      local version = struct.unpack('>I4', ARGV[changed.value + first + i - 1])
      if not stored or struct.unpack('>I4', stored) + 1 ~= version then
        return true
      end
    end
  end)
end

-- Returns the reason why the batch must not be written, nil if there is none.
local function conflict()
  local closings, sweeps, schema = unpack(redis.call('HMGET', META, 'closings', 'sweeps', 'schema'))
  if not schema or header.live and (redis.call('GET', KEYS[#KEYS]) or '0') ~= header.live then
    return 'switched'
  end
  if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= header.run then
    return 'restarted'
  end
  for _, step in ipairs(header.positions) do
    local stored = redis.call('HGET', POSITIONS, step.partition)
    if stored then
      local offset, origin = string.match(stored, '^([^:]*):[^:]*:[^:]*:[^:]*:[^:]*:(.*)$')
      if offset ~= step.offset or origin ~= step.origin then
        return 'moved'
      end
    elseif step.offset then
      return 'moved'
    end
  end
  if tonumber(closings or '0') ~= header.closings then
    return 'swept'
  end
  if tonumber(sweeps or '0') ~= header.sweeps then
    for field, oldest in pairs(header.dependencies) do
      local swept = redis.call('HGET', META, field)
      if swept and tonumber(swept) > oldest then
        return 'swept'
      end
    end
  end
  if commits ~= header.commits and rows_changed() then
    return 'changed'
  end
end

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

-- Adds 64-bit integers as two halves of 32 bits.
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

-- Adds runs of integers to the vector of a key.
local function add_runs(vector, runs)
  local position = 1
  while position <= #runs do
    local first, count, begin = struct.unpack('>I2I2', runs, position)
    local wide = count >= 32768
    if wide then count = count - 32768 end
    local size = 8 * count
    local sums = redis.call('GETRANGE', vector, 8 * first, 8 * first + size - 1)
    if sums == '' then
      sums = string.sub(runs, begin, begin + size - 1)
    else
      if #sums < size then sums = sums .. string.rep('\0', size - #sums) end
      sums = whole and not wide and add(sums, runs, begin, count) or add_halves(sums, runs, begin, count)
    end
    redis.call('SETRANGE', vector, 8 * first, sums)
    position = begin + size
  end
end

local function write_rows(block)
  by_thousands(block, function(first, last)
    local pairs_, n = {}, 0
    for i = first, last do
      pairs_[n + 1], pairs_[n + 2] = KEYS[block.key + i], ARGV[block.value + i]
      n = n + 2
    end
    redis.call('MSET', unpack(pairs_))
  end)
end

local status = conflict()
if status then
  return {status, commits}
end

-- `begun` is counted first and `seq` last: if they differ, a part of a commit was applied (see RedisStore.state).
redis.call('HINCRBY', META, 'begun', 1)
commits = commits + 1
for _, step in ipairs(header.positions) do
  redis.call('HSET', POSITIONS, step.partition, step.position)
end
write_rows(blocks.new_rows)
write_rows(blocks.rows)
for_each('sums', add_runs)
local lengths = {}
for_each('chunks', function(chunk, runs)
  lengths[#lengths + 1] = redis.call('APPEND', chunk, runs)
end)
for_each('counters', function(hash, field, difference)
  redis.call('HINCRBY', hash, field, difference)
end)
for_each('members', function(index, member)
  redis.call('ZADD', index, commits, member)
end)
for_each('hours', function(list, field, names)
  -- The sweep takes an hour out only where it finds no list: a list that is not new has its field already.
  if redis.call('RPUSH', list, names) == 1 then
    redis.call('HSET', HOURS, field, 1)
  end
end)
for_each('texts', function(hash, field, text)
  redis.call('HSET', hash, field, text)
end)
for field, time in pairs(header.latest) do
  local known = redis.call('HGET', LATEST, field)
  if not known or tonumber(known) < time then
    redis.call('HSET', LATEST, field, string.format('%.0f', time))
  end
end
redis.call('HSET', META, 'seq', commits)
return {'applied', commits, lengths}
