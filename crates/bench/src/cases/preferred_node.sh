# A scheduling domain of n CPUs balances every n ms (kernel/sched/topology.c, sd_init): the node level of the published machine, of 104
# CPUs, does so 1/26 as often as that of these 4. It keeps a task that it takes for cache-hot, or that would leave the node NUMA
# balancing prefers, for cache_nice_tries attempts: 26 times as many here keep it for as long as there.
set -e
sched=/sys/kernel/debug/sched
[ -e $sched ] || mount -t debugfs none /sys/kernel/debug
# The domains' files are there only then.
echo Y > $sched/verbose
for domain in $sched/domains/cpu*/domain*; do
	[ "$(cat "$domain/name")" != NUMA ] || echo 52 > "$domain/cache_nice_tries"
done
# MiB a scan, the least there is: what the probe holds besides its buffer is scanned in its turn, as in the published runs.
echo 1 > $sched/numa_balancing/scan_size_mb
exec "$@"
