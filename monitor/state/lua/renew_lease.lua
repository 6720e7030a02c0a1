-- Acquires, prolongs or releases a lease, unless another owner has the lease.
--
-- KEYS     1 the lease
-- ARGV     1 owner  2 duration in ms; 0 releases the lease
-- Result   1, or 0 if another owner has the lease

local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
