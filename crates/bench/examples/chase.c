/*
 * The pointer chase as one would write it in C, to judge nearfar's by (see against_c.rs): the same order of lines, the
 * same buffer, the same pages, the same clock.
 *
 * chase MIB STRIDE CPU SAMPLES STEPS: prints the median of SAMPLES means of STEPS loads, in nanoseconds.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t state = 0x6e65617266617221;

static uint64_t below(uint64_t bound)
{
	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint64_t)(((unsigned __int128)(state * 0x2545F4914F6CDD1D) * bound) >> 64);
}

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int count, char **words)
{
	const size_t huge = 2 << 20;

	if (count != 6)
		return 2;
	size_t bytes = strtoul(words[1], NULL, 10) << 20, stride = strtoul(words[2], NULL, 10);
	size_t samples = strtoul(words[4], NULL, 10), steps = strtoul(words[5], NULL, 10), lines = bytes / stride;
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(atoi(words[3]), &cpu);
	char *memory = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint32_t *order = malloc(lines * sizeof *order);
	double *times = malloc(samples * sizeof *times);
	if (memory == MAP_FAILED || !order || !times || sched_setaffinity(0, sizeof cpu, &cpu))
		return 3;
	memory = (char *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
	madvise(memory, bytes, MADV_HUGEPAGE);
	for (size_t i = 0; i < lines; i++)
		order[i] = i;
	for (size_t i = lines - 1; i > 0; i--) {
		size_t j = below(i);
		uint32_t kept = order[i];

		order[i] = order[j];
		order[j] = kept;
	}
	for (size_t i = 0; i < lines; i++)
		*(void **)(memory + i * stride) = memory + order[i] * stride;
	void **at = (void **)memory;
	/* Whatever writing left in the caches makes room first. */
	for (size_t i = 0; i < lines / 2; i++)
		at = *at;
	for (size_t sample = 0; sample < samples; sample++) {
		double start = now_ns();

		for (size_t i = 0; i < steps; i++)
			at = *at;
		times[sample] = (now_ns() - start) / steps;
	}
	qsort(times, samples, sizeof *times, by_value);
	printf("%.3f\n", times[samples / 2]);
	return at == NULL;
}
