-- Deletes rows that are listed under expired hours of one experiment: at least 4 000 rows if there are so many, and no
-- further list entry after that. An entry contains the names of the rows that one commit has inserted.
--
-- KEYS     1 meta  2 expiry_hours  3 feedback_unmatched  4 arrivals of the present hour  5 arrival_index
--          then two keys for each hour: expiry_rows (list of row names), expiry_moved_rows (hash of the names whose row
--          has moved to another hour since)
-- ARGV     1 number of the experiment, or "pending" for rows of feedback whose response has not arrived
--          2 prefix of the keys of response rows
--          3 field of meta with the experiment's expiry boundary
--          4 new boundary (ms): rows of earlier responses are expired
--          5 field of arrivals that counts unmatched feedback, or "" if arrivals are not counted  6 the present hour
--          7… for each hour its field of expiry_hours
--
-- Result   {rows deleted, hours completed, expirations before, expirations after}. `expirations` counts the calls that
--          have changed something; a commit that expects another number compares its dependencies with the boundaries.
--
-- Only rows that may have moved and rows without a response have to be read before they are deleted. Reactions in
-- deleted rows without a response are unmatched feedback: this script counts them by kind.

local FIRST_HOUR_KEY, FIRST_HOUR_FIELD = 6, 7
local ROWS_PER_CALL = 4000
local KEYS_PER_COMMAND = 1000
local META, EXPIRY_HOURS, FEEDBACK_UNMATCHED, ARRIVALS, ARRIVAL_INDEX = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local EXPERIMENT, ROW_PREFIX, BOUNDARY_FIELD, BOUNDARY_MS = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local ARRIVAL_FIELD, ARRIVAL_HOUR = ARGV[5], ARGV[6]
local IS_PENDING = EXPERIMENT == 'pending'
local HOUR_COUNT = (#KEYS - FIRST_HOUR_KEY + 1) / 2

local expirations_before = tonumber(redis.call('HGET', META, 'expirations') or '0')
local expirations_after = expirations_before
local stored_boundary_ms = redis.call('HGET', META, BOUNDARY_FIELD)
if not stored_boundary_ms or tonumber(stored_boundary_ms) < tonumber(BOUNDARY_MS) then
  redis.call('HSET', META, BOUNDARY_FIELD, BOUNDARY_MS)
  expirations_after = redis.call('HINCRBY', META, 'expirations', 1)
end

local unmatched = {}  -- kind of feedback → reactions

-- Counts the reactions of a row without a response. Their kinds follow the head of 16 bytes and the first byte of an
-- array.
local function count_unmatched(row)
  local _, _, kinds = pcall(cmsgpack.unpack_one, row, 17)
  for _, kind in ipairs(type(kinds) == 'table' and kinds or {}) do  -- damaged rows have none
    unmatched[kind] = (unmatched[kind] or 0) + 1
  end
end

-- Returns the keys whose rows belong to an hour. A row that has moved to another hour is deleted with that hour. If it
-- were deleted here, its name would remain in the list of that hour, and could later delete a newer row of the same id.
local function keys_of_hour(keys, hour_field)
  local matching_keys = {}
  -- One MGET of whole rows costs less than a GETRANGE for each row.
  for i, row in ipairs(redis.call('MGET', unpack(keys))) do
    -- A row: 4 bytes version, 4 bytes experiment · 256 + variant (-1 while the response has not arrived), 8 bytes time
    -- of the response or of the newest reaction.
    if row and #row >= 16 then
      local variant_key, time_ms = struct.unpack('>i4I8', row, 5)
      local experiment = variant_key >= 0 and string.format('%d', math.floor(variant_key / 256)) or 'pending'
      if experiment .. string.format(':%d', math.floor(time_ms / 3600000)) == hour_field then
        matching_keys[#matching_keys + 1] = keys[i]
        if IS_PENDING then count_unmatched(row) end
      end
    end
  end
  return matching_keys
end

-- Returns the names in a list entry; each is preceded by a byte with its length.
local function split_names(entry)
  local names, position = {}, 1
  while position <= #entry do
    local length = string.byte(entry, position)
    names[#names + 1] = string.sub(entry, position + 1, position + length)
    position = position + 1 + length
  end
  return names
end

local deleted_rows, visited_rows, completed_hours = 0, 0, 0

-- Deletes the rows of these names that belong to an hour.
local function delete_rows(names, moved_rows, hour_field)
  local has_moved_rows = not IS_PENDING and #names > 0 and redis.call('EXISTS', moved_rows) == 1
  for first = 1, #names, KEYS_PER_COMMAND do
    local last = math.min(first + KEYS_PER_COMMAND - 1, #names)
    local move_marks = has_moved_rows and redis.call('HMGET', moved_rows, unpack(names, first, last)) or {}
    local expired_keys, keys_to_read = {}, {}
    for i = first, last do
      local keys = (IS_PENDING or move_marks[i - first + 1]) and keys_to_read or expired_keys
      keys[#keys + 1] = ROW_PREFIX .. names[i]
    end
    if #keys_to_read > 0 then
      for _, key in ipairs(keys_of_hour(keys_to_read, hour_field)) do
        expired_keys[#expired_keys + 1] = key
      end
    end
    if #expired_keys > 0 then
      deleted_rows = deleted_rows + redis.call('UNLINK', unpack(expired_keys))
    end
  end
end

while visited_rows < ROWS_PER_CALL and completed_hours < HOUR_COUNT do
  local first_key = FIRST_HOUR_KEY + 2 * completed_hours
  local list, moved_rows, hour_field = KEYS[first_key], KEYS[first_key + 1], ARGV[FIRST_HOUR_FIELD + completed_hours]
  local entry = redis.call('LPOP', list)
  if not entry then
    redis.call('UNLINK', moved_rows)
    redis.call('HDEL', EXPIRY_HOURS, hour_field)
    completed_hours = completed_hours + 1
  else
    if visited_rows == 0 then
      expirations_after = redis.call('HINCRBY', META, 'expirations', 1)
    end
    local names = split_names(entry)
    visited_rows = visited_rows + #names
    delete_rows(names, moved_rows, hour_field)
  end
end
for kind, reactions in pairs(unmatched) do
  redis.call('HINCRBY', FEEDBACK_UNMATCHED, kind, reactions)
  if ARRIVAL_FIELD ~= '' then
    redis.call('HINCRBY', ARRIVALS, ARRIVAL_FIELD, reactions)
    redis.call('ZADD', ARRIVAL_INDEX, 0, ARRIVAL_HOUR)
  end
end
return {deleted_rows, completed_hours, expirations_before, expirations_after}
