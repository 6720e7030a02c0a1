-- Deletes rows that were noted under hours whose rows can no longer change: of as many batches as have a thousand.
--
-- KEYS  1 meta  2 hours  3 there while a worker writes beside the script  then the lists of row keys of some hours, all of
--       one experiment
-- ARGV  1 number of the experiment, or "p" for rows without their response  2 the row keys' prefix
--       3 field of meta that says up to when rows have been swept  4 that time in ms  5 1 if no worker is waited for
--       then for each list its field of hours
-- Returns {rows deleted, how many hours are done, number of sweeps before, number of sweeps after}: a worker to whom the
-- number is new compares the boundary with what its commit rests on. Returns nothing, and has done nothing, while a
-- worker writes beside the script, whose transaction this would void.

if ARGV[5] ~= '1' and redis.call('EXISTS', KEYS[3]) == 1 then
  return false
end
local before = tonumber(redis.call('HGET', KEYS[1], 'sweeps') or '0')
local after = before
local swept = redis.call('HGET', KEYS[1], ARGV[3])
if not swept or tonumber(swept) < tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
  after = redis.call('HINCRBY', KEYS[1], 'sweeps', 1)
end

local boundary = tonumber(ARGV[4])
local deleted, seen, done = 0, 0, 0
while seen < 1000 and done < #KEYS - 3 do
  local noted = redis.call('LPOP', KEYS[done + 4])
  if not noted then
    redis.call('HDEL', KEYS[2], ARGV[done + 6])
    done, noted = done + 1, ''
  elseif seen == 0 then
    after = redis.call('HINCRBY', KEYS[1], 'sweeps', 1)
  end
  local keys, at = {}, 1
  while at <= #noted do
    local length = string.byte(noted, at)
    keys[#keys + 1] = ARGV[2] .. string.sub(noted, at + 1, at + length)
    at = at + 1 + length
  end
  seen = seen + #keys
  for first = 1, #keys, 1000 do
    local gone = {}
    -- Whole rows of some at once: that is less than a command for a part of each.
    for i, row in ipairs(redis.call('MGET', unpack(keys, first, math.min(first + 999, #keys)))) do
      -- Behind four bytes of version stands the arm in four: experiment · 256 + variant, or -1 while the response has
      -- not been seen. After two bytes more come six of time, which is the newest reaction's then. A row that is too
      -- young, or another experiment's by an earlier event with the same id, is noted once more where it belongs.
      local owner = nil
      if row and #row >= 16 then
        local arm, _, time = struct.unpack('>i4I2I6', row, 5)
        if time < boundary then
          owner = arm >= 0 and math.floor(arm / 256) or 'p'
        end
      end
      if tostring(owner) == ARGV[1] then
        gone[#gone + 1] = keys[first + i - 1]
      end
    end
    if #gone > 0 then
      deleted = deleted + redis.call('UNLINK', unpack(gone))
    end
  end
end
return {deleted, done, before, after}
