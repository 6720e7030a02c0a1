-- Deletes rows that were noted under hours whose rows can no longer change: of as many batches as have four thousand.
--
-- KEYS  1 meta  2 hours  3 unmatched feedback by kind, then of each of some hours, all of one experiment: the list of
--       row names, and the hash of names whose row belonged to another hour later. Only rows of that hash, and rows
--       without a response, have to be read.
-- ARGV  1 number of the experiment, or "p" for rows without their response  2 the row keys' prefix
--       3 field of meta that says up to when rows have been swept  4 that time in ms
--       then for each list its field of hours
-- Reactions of deleted rows without a response are unmatched feedback: they are counted by kind in the same step.
-- Returns {rows deleted, how many hours are done, number of sweeps before, number of sweeps after}: a worker to whom the
-- number is new compares the boundary with what its commit depends on.

local before = tonumber(redis.call('HGET', KEYS[1], 'sweeps') or '0')
local after = before
local swept = redis.call('HGET', KEYS[1], ARGV[3])
if not swept or tonumber(swept) < tonumber(ARGV[4]) then
  redis.call('HSET', KEYS[1], ARGV[3], ARGV[4])
  after = redis.call('HINCRBY', KEYS[1], 'sweeps', 1)
end

local deleted, seen, done = 0, 0, 0
local pending = ARGV[1] == 'p'
local unmatched = {}

-- Returns those of the keys whose row belongs to an hour. What an old note deleted would leave its own note behind, and
-- that could delete a young row of the same id one day.
local function belonging(keys, hour)
  local found = {}
  -- Whole rows of some at once: that is less than a command for a part of each.
  for i, row in ipairs(redis.call('MGET', unpack(keys))) do
    -- Behind four bytes of version stands the arm in four: experiment · 256 + variant, or -1 while the response has
    -- not been seen. Then come eight of time, which is the newest reaction's in that case.
    if row and #row >= 16 then
      local arm, time = struct.unpack('>i4I8', row, 5)
      local owner = arm >= 0 and string.format('%d', math.floor(arm / 256)) or 'p'
      if owner .. string.format(':%d', math.floor(time / 3600000)) == hour then
        found[#found + 1] = keys[i]
        if pending then
          -- Behind the head of 16 bytes and the byte that begins an array stand the kinds of its reactions.
          local _, _, kinds = pcall(cmsgpack.unpack_one, row, 17)
          for _, kind in ipairs(type(kinds) == 'table' and kinds or {}) do  -- of damaged bytes none
            unmatched[kind] = (unmatched[kind] or 0) + 1
          end
        end
      end
    end
  end
  return found
end

while seen < 4000 and done < (#KEYS - 3) / 2 do
  local list, moved, hour = KEYS[2 * done + 4], KEYS[2 * done + 5], ARGV[done + 5]
  local noted = redis.call('LPOP', list)
  if not noted then
    redis.call('UNLINK', moved)
    redis.call('HDEL', KEYS[2], hour)
    done, noted = done + 1, ''
  elseif seen == 0 then
    after = redis.call('HINCRBY', KEYS[1], 'sweeps', 1)
  end
  local names, at = {}, 1
  while at <= #noted do
    local length = string.byte(noted, at)
    names[#names + 1] = string.sub(noted, at + 1, at + length)
    at = at + 1 + length
  end
  seen = seen + #names
  local some = not pending and #names > 0 and redis.call('EXISTS', moved) == 1
  for first = 1, #names, 1000 do
    local last = math.min(first + 999, #names)
    local elsewhere = some and redis.call('HMGET', moved, unpack(names, first, last)) or {}
    local gone, doubtful = {}, {}
    for i = first, last do
      local into = (pending or elsewhere[i - first + 1]) and doubtful or gone
      into[#into + 1] = ARGV[2] .. names[i]
    end
    if #doubtful > 0 then
      for _, key in ipairs(belonging(doubtful, hour)) do
        gone[#gone + 1] = key
      end
    end
    if #gone > 0 then
      deleted = deleted + redis.call('UNLINK', unpack(gone))
    end
  end
end
for kind, reactions in pairs(unmatched) do
  redis.call('HINCRBY', KEYS[3], kind, reactions)
end
return {deleted, done, before, after}
