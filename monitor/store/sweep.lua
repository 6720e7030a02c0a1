-- Deletes the rows of one batch that was noted under an hour whose rows can no longer change.
--
-- KEYS  1 meta  2 list of row keys  3 hours
-- ARGV  1 field of hours  2 "pending" if only rows without their response may go, else ""  3 the row keys' prefix
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
  local gone = ARGV[2] == ''
  if not gone then
    -- Byte 4 opens the array; 0xff (-1) is the arm of a response that has not been seen, and after 0xcf comes the time of
    -- its newest reaction. If that is too young, the row is noted once more under that reaction's hour.
    local head = redis.call('GETRANGE', key, 5, 14)
    gone = string.sub(head, 1, 2) == '\255\207' and struct.unpack('>l', head, 3) < tonumber(ARGV[5])
  end
  if gone then
    deleted = deleted + redis.call('UNLINK', key)
  end
end
return {deleted, before, after}
