/*
 * A replica of cpumask_local_spread() as Linux has it since 6.7, on machines that are read from standard input. It keeps to
 * what the kernel's comments and behaviour say of
 *   numa_nearest_node()        mm/mempolicy.c: the first of the nearest nodes that have CPUs, unless the node has some
 *   sched_init_numa()          kernel/sched/topology.c: a level for each distance between nodes that have CPUs, and for each
 *                              level and node the CPUs up to that distance
 *   sched_numa_find_nth_cpu()  a binary search for the level that holds the CPU wanted, then the CPU among those new in it
 *   cpumask_local_spread()     lib/cpumask.c: the number modulo the CPUs online
 *
 * Input, all numbers, a machine after the other: possible nodes, CPUs, for each CPU its node and whether it is online, the
 * distances row by row, the node to spread from (-1 for none), how many queues. Output: a line of CPUs for each machine.
 */
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { NODES = 32, CPUS = 128, DISTANCES = 256 };

static int nodes, cpus, levels;
static int node_of[CPUS], level_distance[DISTANCES];
static bool is_online[CPUS];
static int distance[NODES][NODES];
/* The CPUs that a node reaches within a level. */
static bool reach[DISTANCES][NODES][CPUS];

static bool has_cpus(int node)
{
	for (int cpu = 0; cpu < cpus; cpu++)
		if (is_online[cpu] && node_of[cpu] == node)
			return true;
	return false;
}

static void build_levels(void)
{
	bool seen[DISTANCES] = { false };

	for (int a = 0; a < nodes; a++)
		for (int b = 0; b < nodes; b++)
			if (has_cpus(a) && has_cpus(b))
				seen[distance[a][b]] = true;
	levels = 0;
	for (int value = 0; value < DISTANCES; value++)
		if (seen[value])
			level_distance[levels++] = value;
	for (int level = 0; level < levels; level++)
		for (int from = 0; from < nodes; from++)
			for (int cpu = 0; cpu < cpus; cpu++)
				reach[level][from][cpu] = is_online[cpu] && has_cpus(from) &&
					distance[from][node_of[cpu]] <= level_distance[level];
}

static int weight(int level, int node)
{
	int sum = 0;

	for (int cpu = 0; cpu < cpus; cpu++)
		sum += reach[level][node][cpu];
	return sum;
}

static int nearest_with_cpus(int node)
{
	int best = INT_MAX, found = node;

	if (has_cpus(node))
		return node;
	for (int other = 0; other < nodes; other++)
		if (has_cpus(other) && distance[node][other] < best) {
			best = distance[node][other];
			found = other;
		}
	return found;
}

struct key {
	int cpu, node, before;
};

/* 1: the level is too small, -1: it is too large, 0: it holds the CPU and the one below does not. */
static int compare_level(const void *wanted, const void *entry)
{
	struct key *key = (struct key *)wanted;
	int level = *(const int *)entry;

	if (weight(level, key->node) <= key->cpu)
		return 1;
	key->before = level ? weight(level - 1, key->node) : 0;
	return key->before <= key->cpu ? 0 : -1;
}

static int find_nth_cpu(int wanted, int node)
{
	int all[DISTANCES];
	struct key key = { .cpu = wanted };

	if (node == -1) {
		for (int cpu = 0; cpu < cpus; cpu++)
			if (is_online[cpu] && wanted-- == 0)
				return cpu;
		return -1;
	}
	key.node = nearest_with_cpus(node);
	for (int level = 0; level < levels; level++)
		all[level] = level;
	int *found = bsearch(&key, all, levels, sizeof(all[0]), compare_level);
	if (!found)
		return -1;
	wanted -= key.before;
	for (int cpu = 0; cpu < cpus; cpu++) {
		bool is_new = reach[*found][key.node][cpu] && !(*found && reach[*found - 1][key.node][cpu]);
		if (is_new && wanted-- == 0)
			return cpu;
	}
	return -1;
}

static int next_number(void)
{
	int value;

	if (scanf("%d", &value) != 1)
		exit(2);
	return value;
}

int main(void)
{
	while (scanf("%d", &nodes) == 1) {
		int from, queues, online = 0;

		cpus = next_number();
		if (nodes > NODES || cpus > CPUS)
			return 3;
		for (int cpu = 0; cpu < cpus; cpu++) {
			node_of[cpu] = next_number();
			is_online[cpu] = next_number();
			online += is_online[cpu];
		}
		for (int a = 0; a < nodes; a++)
			for (int b = 0; b < nodes; b++)
				distance[a][b] = next_number();
		from = next_number();
		queues = next_number();
		build_levels();
		for (int queue = 0; queue < queues; queue++)
			printf("%d%c", find_nth_cpu(queue % online, from), queue + 1 < queues ? ' ' : '\n');
	}
	return 0;
}
