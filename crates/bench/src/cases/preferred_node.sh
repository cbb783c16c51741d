# A scheduling domain of n CPUs balances every n ms (kernel/sched/topology.c, sd_init): the node level of the published machine, of 104
# CPUs, less often than that of a smaller one. It keeps a task that it takes for cache-hot, or that would leave the node NUMA balancing
# prefers, for cache_nice_tries (2) attempts: more of them here keep it for as long as there.
set -e
sched=/sys/kernel/debug/sched
[ -e $sched ] || mount -t debugfs none /sys/kernel/debug
# The domains' files are there only then.
echo Y > $sched/verbose
for domain in $sched/domains/cpu*/domain*; do
	[ "$(cat "$domain/name")" != NUMA ] || echo $((2 * 104 / $(nproc))) > "$domain/cache_nice_tries"
done
exec "$@"
