-- Applies a batch to a shard: compares the state that the worker expects with the stored state, then writes everything.
-- `StoreShard.commit` sends this script and numbers the steps in the same way.
--
-- KEYS     1 meta  2 positions  3 newest_times  4 expiry_hours
--          5… the keys of the blocks, in the order of BLOCKS
--          last, on the first shard only: the key of the active generation's number
-- ARGV     1 header, a MessagePack map:
--              run_id             run id of the server from which the worker has read its state
--              active_generation  number of the generation that must be active, or false on other shards
--              experiments_version
--                                 version of the set of declared experiments under which the events were decoded
--              commits, expirations, student_deletions
--                                 the store's counters when the worker read its state
--              positions          list of {partition, expected_offset (or false for none), expected_log, position}
--              dependencies       field of meta with an expiry boundary → time (ms) of the oldest row or event that the
--                                 batch depends on
--              newest_times       field of newest_times → time (ms)
--              blocks             name of a block → number of its keys
--          2… the values of the blocks, in the order of BLOCKS, key by key:
--              new_rows           row that must not be stored yet
--              changed_rows       row; its first four bytes are its version, 1 more than the version of the stored row
--              record_increments  runs of integers that are added to a record: 2 bytes index of the first integer,
--                                 2 bytes count (plus 32768 if an integer has an absolute value above 2^51), and
--                                 8 bytes for each integer
--              bucket_appends     runs that are appended to a chunk of time buckets
--              counter_increments field of a hash, difference
--              index_members      member of a sorted set; its score becomes the number of this commit
--              expiry_entries     field of expiry_hours, names of new rows with their lengths
--              hash_texts         field of a hash, text
--
-- Result   {status, number of commits, {length of each appended chunk}}. The status is one of
--              applied              everything was written
--              generation_switched  another generation is active, or this one is being deleted
--              experiments_changed  another version of the set of declared experiments is stored
--              server_restarted     the server was restarted or replaced, and may have lost writes
--              positions_changed    another worker has applied records of these partitions
--              expired              rows were deleted on which the batch may depend, or the student rows of an
--                                   experiment are being deleted
--              rows_changed         another worker has changed a row of this batch
--          Unless it is "applied", nothing was written.
--
-- Every key is declared: while a slot moves to another node of a cluster, the server rejects a script with an absent
-- key before the script starts, instead of failing half way.

local BLOCKS = {
  {'new_rows', 1}, {'changed_rows', 1}, {'record_increments', 1}, {'bucket_appends', 1}, {'counter_increments', 2},
  {'index_members', 1}, {'expiry_entries', 2}, {'hash_texts', 2},
}
local FIRST_BLOCK_KEY, FIRST_BLOCK_VALUE = 5, 2
local KEYS_PER_COMMAND = 1000  -- Lua cannot unpack more than some thousand values
local META, POSITIONS, NEWEST_TIMES, EXPIRY_HOURS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local header = cmsgpack.unpack(ARGV[1])
local commits = tonumber(redis.call('HGET', META, 'commits') or '0')

-- Name of a block → its first index in KEYS and in ARGV, its values for each key, its number of keys.
local blocks, next_key, next_value = {}, FIRST_BLOCK_KEY, FIRST_BLOCK_VALUE
for _, block in ipairs(BLOCKS) do
  local name, values_per_key = unpack(block)
  local count = header.blocks[name]
  blocks[name] = {first_key = next_key, first_value = next_value, values_per_key = values_per_key, count = count}
  next_key, next_value = next_key + count, next_value + values_per_key * count
end

-- Calls `write(key, value, second value)` for each key of a block.
local function for_each_key(name, write)
  local block = blocks[name]
  for i = 0, block.count - 1 do
    local value_index = block.first_value + block.values_per_key * i
    write(KEYS[block.first_key + i], ARGV[value_index], ARGV[value_index + 1])
  end
end

-- Calls `process(first, last)` with ranges of up to a thousand keys of a block, until a call returns true.
local function for_each_thousand(block, process)
  for first = 0, block.count - 1, KEYS_PER_COMMAND do
    if process(first, math.min(first + KEYS_PER_COMMAND, block.count) - 1) then
      return true
    end
  end
end

-- Returns whether another worker has inserted or changed a row of this batch.
local function rows_changed()
  local new, changed = blocks.new_rows, blocks.changed_rows
  return for_each_thousand(new, function(first, last)
    return redis.call('EXISTS', unpack(KEYS, new.first_key + first, new.first_key + last)) > 0
  end) or for_each_thousand(changed, function(first, last)
    local stored_rows = redis.call('MGET', unpack(KEYS, changed.first_key + first, changed.first_key + last))
    for i, stored_row in ipairs(stored_rows) do
      local version = struct.unpack('>I4', ARGV[changed.first_value + first + i - 1])
      if not stored_row or struct.unpack('>I4', stored_row) + 1 ~= version then
        return true
      end
    end
  end)
end

-- Returns the status of a batch that must not be written, nil if there is no conflict: steps 1 to 5.
local function find_conflict()
  -- 1. The generation must be active, and the events must be decoded under the stored set of declared experiments.
  local student_deletions, expirations, schema, version =
    unpack(redis.call('HMGET', META, 'student_deletions', 'expirations', 'schema', 'experiments_version'))
  local expected_generation = header.active_generation
  if not schema or expected_generation and (redis.call('GET', KEYS[#KEYS]) or '0') ~= expected_generation then
    return 'generation_switched'
  end
  if tonumber(version or '0') ~= header.experiments_version then
    return 'experiments_changed'
  end
  -- 2. The server must be the process from which the worker has read.
  if string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') ~= header.run_id then
    return 'server_restarted'
  end
  -- 3. The partitions must be at the expected offsets of the expected logs.
  for _, update in ipairs(header.positions) do
    local stored = redis.call('HGET', POSITIONS, update.partition)
    if stored then
      local offset, log = string.match(stored, '^([^:]*):[^:]*:[^:]*:[^:]*:[^:]*:(.*)$')
      if offset ~= update.expected_offset or log ~= update.expected_log then
        return 'positions_changed'
      end
    elseif update.expected_offset then
      return 'positions_changed'
    end
  end
  -- 4. No row may have expired on which the batch depends.
  if tonumber(student_deletions or '0') ~= header.student_deletions then
    return 'expired'
  end
  if tonumber(expirations or '0') ~= header.expirations then
    for boundary_field, oldest_ms in pairs(header.dependencies) do
      local boundary_ms = redis.call('HGET', META, boundary_field)
      if boundary_ms and tonumber(boundary_ms) > oldest_ms then
        return 'expired'
      end
    end
  end
  -- 5. If another worker has committed since, the rows of the batch must be at the expected versions.
  if commits ~= header.commits and rows_changed() then
    return 'rows_changed'
  end
end

-- Adds integers as Lua numbers, which are exact up to 2^53. Returns nil if a sum is beyond 2^51: then an addend may
-- have been rounded. Differences up to 2^51 and sums up to 2^51 imply that the stored integers are below 2^52.
local has_64_bit_integers = struct.unpack('>i8', '\0\0\1\0\0\0\0\0') == 1099511627776  -- false where C's long has 32 bits
local formats = {}
local function add_as_numbers(stored, runs, begin, count)
  local format = formats[count] or '>' .. string.rep('i8', count)
  formats[count] = format
  local sums = {struct.unpack(format, stored)}
  local differences = {struct.unpack(format, runs, begin)}
  for i = 1, count do
    local sum = sums[i] + differences[i]
    if sum > 2251799813685248 or sum < -2251799813685248 then
      return nil
    end
    sums[i] = sum
  end
  return struct.pack(format, unpack(sums, 1, count))
end

-- Adds 64-bit integers as two halves of 32 bits.
local function add_as_halves(stored, runs, begin, count)
  local format = '>' .. string.rep('i4I4', count)
  local sums = {struct.unpack(format, stored)}
  local differences = {struct.unpack(format, runs, begin)}
  for i = 2, 2 * count, 2 do
    local high, low = sums[i - 1] + differences[i - 1], sums[i] + differences[i]
    if low >= 4294967296 then
      high, low = high + 1, low - 4294967296
    end
    sums[i - 1], sums[i] = high, low
  end
  return struct.pack(format, unpack(sums, 1, 2 * count))
end

-- Adds runs of integers to the record of a key.
local function increment_record(key, runs)
  local position = 1
  while position <= #runs do
    local first, count, begin = struct.unpack('>I2I2', runs, position)
    local has_large_integers = count >= 32768
    if has_large_integers then count = count - 32768 end
    local size = 8 * count
    local stored = redis.call('GETRANGE', key, 8 * first, 8 * first + size - 1)
    local sums
    if stored == '' then
      sums = string.sub(runs, begin, begin + size - 1)
    else
      if #stored < size then stored = stored .. string.rep('\0', size - #stored) end
      sums = has_64_bit_integers and not has_large_integers and add_as_numbers(stored, runs, begin, count)
        or add_as_halves(stored, runs, begin, count)
    end
    redis.call('SETRANGE', key, 8 * first, sums)
    position = begin + size
  end
end

local function write_rows(block)
  for_each_thousand(block, function(first, last)
    local keys_and_rows, n = {}, 0
    for i = first, last do
      keys_and_rows[n + 1], keys_and_rows[n + 2] = KEYS[block.first_key + i], ARGV[block.first_value + i]
      n = n + 2
    end
    redis.call('MSET', unpack(keys_and_rows))
  end)
end

local conflict = find_conflict()
if conflict then
  return {conflict, commits}
end

-- 6. Write. `commits_begun` is counted first and `commits` last: if the two differ, a part of a commit was applied (see
-- `StoreShard.read_state`).
redis.call('HINCRBY', META, 'commits_begun', 1)
commits = commits + 1
for _, update in ipairs(header.positions) do
  redis.call('HSET', POSITIONS, update.partition, update.position)
end
write_rows(blocks.new_rows)
write_rows(blocks.changed_rows)
for_each_key('record_increments', increment_record)
local chunk_lengths = {}
for_each_key('bucket_appends', function(chunk, runs)
  chunk_lengths[#chunk_lengths + 1] = redis.call('APPEND', chunk, runs)
end)
for_each_key('counter_increments', function(hash, field, difference)
  redis.call('HINCRBY', hash, field, difference)
end)
for_each_key('index_members', function(index, member)
  redis.call('ZADD', index, commits, member)
end)
for_each_key('expiry_entries', function(list, hour_field, names)
  -- expire.lua removes an hour only if its list is absent: an existing list has its field already.
  if redis.call('RPUSH', list, names) == 1 then
    redis.call('HSET', EXPIRY_HOURS, hour_field, 1)
  end
end)
for_each_key('hash_texts', function(hash, field, text)
  redis.call('HSET', hash, field, text)
end)
for field, time_ms in pairs(header.newest_times) do
  local stored_ms = redis.call('HGET', NEWEST_TIMES, field)
  if not stored_ms or tonumber(stored_ms) < time_ms then
    redis.call('HSET', NEWEST_TIMES, field, string.format('%.0f', time_ms))
  end
end
redis.call('HSET', META, 'commits', commits)
return {'applied', commits, chunk_lengths}
