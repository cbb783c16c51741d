/*
 * The probe's patterns as one would write them in C, to judge nearfar's by (see probe_against_c.rs): the same generator,
 * the same order, the same buffer of the same pages, the same clock.
 *
 * probe PATTERN BYTES COUNTS STEPS CPU: prints the nanoseconds an access of each of COUNTS rounds of STEPS accesses.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t state = 0x6e65617266617221;
static size_t at;
static volatile uint64_t sink;

#define NEXT (state = state * 6364136223846793005u + 1442695040888963407u)
#define PLACE ((size_t)(((unsigned __int128)state * length) >> 64))

/* Calls whole(from, to) for the words of the next steps of a sequence. */
#define IN_SEQUENCE(body)                                                                                              \
	while (steps > 0) {                                                                                            \
		size_t from = at >= length ? 0 : at, to = from + (steps < length - from ? steps : length - from);     \
		body;                                                                                                  \
		steps -= to - from;                                                                                    \
		at = to;                                                                                               \
	}

__attribute__((noinline)) static void random_read_write(uint64_t *words, size_t length, uint64_t steps)
{
	for (uint64_t i = 0; i < steps; i++) {
		NEXT;
		words[PLACE]++;
	}
}

__attribute__((noinline)) static void random_read(uint64_t *words, size_t length, uint64_t steps)
{
	uint64_t sum = 0;

	for (uint64_t i = 0; i < steps; i++) {
		NEXT;
		sum += words[PLACE];
	}
	sink = sum;
}

__attribute__((noinline)) static void random_write(uint64_t *words, size_t length, uint64_t steps)
{
	for (uint64_t i = 0; i < steps; i++) {
		NEXT;
		words[PLACE] = state;
	}
}

__attribute__((noinline)) static void sequential_read_write(uint64_t *words, size_t length, uint64_t steps)
{
	IN_SEQUENCE(for (size_t i = from; i < to; i++) words[i]++)
}

__attribute__((noinline)) static void sequential_read(uint64_t *words, size_t length, uint64_t steps)
{
	uint64_t sum = 0;

	IN_SEQUENCE(for (size_t i = from; i < to; i++) sum += words[i])
	sink = sum;
}

__attribute__((noinline)) static void sequential_write(uint64_t *words, size_t length, uint64_t steps)
{
	uint64_t value = steps;

	IN_SEQUENCE(for (size_t i = from; i < to; i++) words[i] = value)
}

__attribute__((noinline)) static void chain(uint64_t *words, size_t length, uint64_t steps)
{
	uint64_t next = at;

	(void)length;
	for (uint64_t i = 0; i < steps; i++)
		next = words[next];
	at = next;
}

static uint64_t below(uint64_t bound)
{
	static uint64_t state = 0x6e65617266617221;

	state ^= state >> 12;
	state ^= state << 25;
	state ^= state >> 27;
	return (uint64_t)(((unsigned __int128)(state * 0x2545F4914F6CDD1D) * bound) >> 64);
}

/* One random cycle over all lines of 64 bytes. */
static void link_lines(uint64_t *words, size_t length)
{
	size_t lines = length / 8;
	uint32_t *order = malloc(lines * sizeof *order);

	if (!order)
		exit(3);
	for (size_t i = 0; i < lines; i++)
		order[i] = i;
	for (size_t i = lines - 1; i > 0; i--) {
		size_t j = below(i);
		uint32_t kept = order[i];

		order[i] = order[j];
		order[j] = kept;
	}
	for (size_t i = 0; i < lines; i++)
		words[i * 8] = (uint64_t)order[i] * 8;
	free(order);
}

static double now_ns(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

static const struct {
	const char *name;
	void (*round)(uint64_t *, size_t, uint64_t);
} patterns[] = {
	{"random_read_write", random_read_write},
	{"sequential_read_write", sequential_read_write},
	{"random_read", random_read},
	{"sequential_read", sequential_read},
	{"random_write", random_write},
	{"sequential_write", sequential_write},
	{"chain", chain},
};

int main(int count, char **words)
{
	const size_t huge = 2 << 20;
	void (*round)(uint64_t *, size_t, uint64_t) = NULL;

	if (count != 6)
		return 2;
	for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
		if (strcmp(words[1], patterns[i].name) == 0)
			round = patterns[i].round;
	size_t bytes = strtoul(words[2], NULL, 10), counts = strtoul(words[3], NULL, 10);
	uint64_t steps = strtoul(words[4], NULL, 10);
	cpu_set_t cpu;
	CPU_ZERO(&cpu);
	CPU_SET(atoi(words[5]), &cpu);
	char *memory = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	double *times = calloc(counts, sizeof *times);
	if (!round || memory == MAP_FAILED || !times || sched_setaffinity(0, sizeof cpu, &cpu))
		return 3;
	uint64_t *buffer = (uint64_t *)(((uintptr_t)memory + huge - 1) & ~(huge - 1));
	size_t length = bytes / sizeof *buffer;
	madvise(buffer, bytes, MADV_NOHUGEPAGE);
	for (size_t i = 0; i < length; i += 4096 / sizeof *buffer)
		buffer[i] = 0;
	if (round == chain)
		link_lines(buffer, length);
	round(buffer, length, 4096);
	double start = now_ns();
	for (size_t i = 0; i < counts; i++) {
		round(buffer, length, steps);
		double end = now_ns();
		times[i] = (end - start) / steps;
		start = end;
	}
	for (size_t i = 0; i < counts; i++)
		printf("%.4f\n", times[i]);
	return 0;
}
