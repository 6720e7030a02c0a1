-- Deletes the rows of one batch that was noted under an hour whose rows can no longer change.
--
-- KEYS  1 meta  2 list of row keys  3 hours
-- ARGV  1 field of hours  2 number of the experiment, or "p" for rows without their response  3 the row keys' prefix
--       4 field of meta that says up to when rows have been swept  5 that time in ms
-- Returns {rows deleted or -1 when the hour is done, number of sweeps before, number of sweeps after}: a worker whose rows
-- it might have touched sees that the number has moved.

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
local deleted, at = 0, 1
while at <= #noted do
  local length = string.byte(noted, at)
  local key = ARGV[3] .. string.sub(noted, at + 1, at + length)
  at = at + 1 + length
  -- Byte 4 opens the array, and the arm comes first: experiment · 256 + variant in two bytes after 0xcd or in four after
  -- 0xce, or 0xff (-1) while the response has not been seen; after 0xcf comes the time of the newest reaction then. If
  -- that is too young, the row is noted once more under that reaction's hour. A response that has become another
  -- experiment's, by an earlier event with the same id, is noted there, too.
  local head = redis.call('GETRANGE', key, 5, 14)
  local kind, owner = string.byte(head), nil
  if kind == 205 then
    owner = math.floor(struct.unpack('>I2', head, 2) / 256)
  elseif kind == 206 then
    owner = math.floor(struct.unpack('>I4', head, 2) / 256)
  elseif string.sub(head, 1, 2) == '\255\207' and struct.unpack('>l', head, 3) < tonumber(ARGV[5]) then
    owner = 'p'
  end
  if tostring(owner) == ARGV[2] then
    deleted = deleted + redis.call('UNLINK', key)
  end
end
return {deleted, before, after}
