-- Deletes rows of responses that are listed under an hour of an experiment's number, if they still have the number: a
-- worker may have moved a row to a later number of the experiment.
--
-- KEYS     1 list of row names (expiry_rows)
-- ARGV     1 number  2 prefix of the keys of response rows
-- Result   {rows deleted, list entries that remain}

local NUMBER, ROW_PREFIX = tonumber(ARGV[1]), ARGV[2]
local deleted_rows = 0
local entry = redis.call('LPOP', KEYS[1]) or ''
local position = 1
while position <= #entry do
  local length = string.byte(entry, position)
  local key = ROW_PREFIX .. string.sub(entry, position + 1, position + length)
  position = position + 1 + length
  -- A row: 4 bytes version, 4 bytes experiment · 256 + variant.
  local head = redis.call('GETRANGE', key, 0, 7)
  if #head == 8 and math.floor(struct.unpack('>i4', head, 5) / 256) == NUMBER then
    deleted_rows = deleted_rows + redis.call('UNLINK', key)
  end
end
return {deleted_rows, redis.call('EXISTS', KEYS[1])}
