-- Moves a shard to a version of the set of declared experiments. Commits of workers with another version then fail, so
-- each event before the stored positions was decoded under an earlier version, and each later event is decoded under
-- this version or a later one.
--
-- KEYS     1 meta  2 positions  3 events_skipped
--          4… the key of backfill_targets of each new number
--          on the first shard also, as the last three: experiments_set, definitions, horizons
-- ARGV     1 header, a MessagePack map:
--              version            the new version
--              expected_version   the version that must be stored, or false on other shards than the first
--              skipped_fields     for each new number a field of events_skipped: without skipped events in this field,
--                                 and of experiments without a field of their own, there is nothing to fill; "" if
--                                 the positions are always targets
--              experiments_set    the set as JSON (first shard only, as the rest)
--              definitions        name → JSON; false removes the name
--              horizons           number → ms
--
-- Result   1 if the version was written, 0 if the shard has another version than expected, or a later one.

local META, POSITIONS, EVENTS_SKIPPED, FIRST_TARGETS_KEY = KEYS[1], KEYS[2], KEYS[3], 4
local header = cmsgpack.unpack(ARGV[1])
local stored_version = tonumber(redis.call('HGET', META, 'experiments_version') or '0')
if header.expected_version then
  if stored_version ~= header.expected_version then return 0 end
elseif stored_version >= header.version then
  return 0
end

local function has_skipped_events(field)
  return tonumber(redis.call('HGET', EVENTS_SKIPPED, field) or '0') > 0
end

local positions = redis.call('HGETALL', POSITIONS)
for i, field in ipairs(header.skipped_fields) do
  if field == '' or has_skipped_events(field) or has_skipped_events('responses:other') then
    for j = 1, #positions, 2 do
      redis.call('HSET', KEYS[FIRST_TARGETS_KEY + i - 1], positions[j], positions[j + 1])
    end
  end
end
if header.expected_version then
  local experiments_set, definitions, horizons = KEYS[#KEYS - 2], KEYS[#KEYS - 1], KEYS[#KEYS]
  redis.call('SET', experiments_set, header.experiments_set)
  for name, text in pairs(header.definitions) do
    if text then redis.call('HSET', definitions, name, text) else redis.call('HDEL', definitions, name) end
  end
  for number, horizon_ms in pairs(header.horizons) do
    redis.call('HSET', horizons, number, string.format('%.0f', horizon_ms))
  end
end
redis.call('HSET', META, 'experiments_version', header.version)
return 1
