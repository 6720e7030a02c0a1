-- Deletes rows that were noted under an hour whose rows can no longer change: of as many batches as have a thousand.
--
-- KEYS  1 meta  2 list of row keys  3 hours
-- ARGV  1 field of hours  2 number of the experiment, or "p" for rows without their response  3 the row keys' prefix
--       4 field of meta that says up to when rows have been swept  5 that time in ms
-- Returns {rows deleted or -1 when the hour is done, number of sweeps before, number of sweeps after}: a worker to whom the
-- number is new compares the boundary with what its commit rests on.

local before = tonumber(redis.call('HGET', KEYS[1], 'sweeps') or '0')
local swept = redis.call('HGET', KEYS[1], ARGV[4])
if not swept or tonumber(swept) < tonumber(ARGV[5]) then
  redis.call('HSET', KEYS[1], ARGV[4], ARGV[5])
  redis.call('HINCRBY', KEYS[1], 'sweeps', 1)
end

local noted = redis.call('LPOP', KEYS[2])
if not noted then
  redis.call('HDEL', KEYS[3], ARGV[1])
  return {-1, before, tonumber(redis.call('HGET', KEYS[1], 'sweeps') or '0')}
end
local after = redis.call('HINCRBY', KEYS[1], 'sweeps', 1)
local boundary = tonumber(ARGV[5])
local deleted, seen = 0, 0
while noted do
  local keys, at = {}, 1
  while at <= #noted do
    local length = string.byte(noted, at)
    keys[#keys + 1] = ARGV[3] .. string.sub(noted, at + 1, at + length)
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
      if tostring(owner) == ARGV[2] then
        gone[#gone + 1] = keys[first + i - 1]
      end
    end
    if #gone > 0 then
      deleted = deleted + redis.call('UNLINK', unpack(gone))
    end
  end
  noted = seen < 1000 and redis.call('LPOP', KEYS[2])
end
return {deleted, before, after}
