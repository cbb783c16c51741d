// The loops of loops.rs over a mempool of DPDK, whose get and put are inline functions of its headers.
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_pause.h>

enum { MOST = 31, LINES = 4, CLOSED = UINT16_MAX, BETWEEN_LOOKS = 64, CACHE = 16 };

// As in ring.rs. A tag is an object's distance from the first one in cache lines.
struct line {
    uint16_t filled;
    uint16_t tags[MOST];
} __attribute__((aligned(128)));
struct ring {
    struct line lines[LINES];
    uint64_t len, line, looks;
};

static bool stopped(const uint8_t *stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED); }

// 0, or what rte_eal_init says. The calling thread stays on one CPU afterwards.
int peer_start(void) {
    static char *arguments[] = {"tags", "--no-huge", "--no-pci", "--no-shconf", "--no-telemetry",
                                "-m",   "64",        "-l",       NULL,          "--log-level=*:error", NULL};
    static char cpu[16];
    snprintf(cpu, sizeof cpu, "%d", sched_getcpu());
    arguments[8] = cpu;
    return rte_eal_init(10, arguments) < 0 ? -1 : 0;
}

int peer_enter(void) { return rte_thread_register(); }
void peer_leave(void) { rte_thread_unregister(); }

static void note_first(struct rte_mempool *pool, void *first, void *object, unsigned index) {
    (void)pool;
    if (index == 0) *(char **)first = object;
}

struct peer {
    struct rte_mempool *pool;
    unsigned tags;
    char *first; // object
};

void peer_free(struct peer *peer) {
    rte_mempool_free(peer->pool);
    free(peer);
}

struct peer *peer_make(unsigned tags) {
    struct peer *peer = calloc(1, sizeof *peer);
    peer->tags = tags;
    peer->pool = rte_mempool_create("tags", tags, sizeof(uint64_t), CACHE, 0, NULL, NULL, note_first, &peer->first, SOCKET_ID_ANY, 0);
    if (peer->pool) return peer;
    peer_free(peer);
    return NULL;
}

uint64_t peer_plenty(struct peer *peer, const uint8_t *stop) {
    struct rte_mempool *pool = peer->pool;
    uint64_t puts = 0;
    while (!stopped(stop))
        for (unsigned i = 0; i < BETWEEN_LOOKS; i++) {
            void *object;
            if (rte_mempool_get(pool, &object) != 0) continue;
            rte_mempool_put(pool, object);
            puts++;
        }
    return puts;
}

uint64_t peer_saturated(struct peer *peer, uint64_t depth, const uint8_t *stop) {
    struct rte_mempool *pool = peer->pool;
    void **held = calloc(depth + 1, sizeof *held);
    uint64_t first = 0, end = 0, length = 0, puts = 0;
#define PUT_OLDEST() (rte_mempool_put(pool, held[first]), first = first == depth ? 0 : first + 1, length--)
    while (!stopped(stop))
        for (unsigned i = 0; i < BETWEEN_LOOKS; i++) {
            void *object;
            if (length == depth) PUT_OLDEST(), puts++;
            if (rte_mempool_get(pool, &object) == 0) {
                held[end] = object;
                end = end == depth ? 0 : end + 1;
                length++;
            } else if (length > 0)
                PUT_OLDEST(), puts++;
            else
                sched_yield();
        }
    while (length > 0) PUT_OLDEST();
    free(held);
    return puts;
}

static void pause_for(const struct ring *ring, uint64_t *turns) {
    if (++*turns % ring->looks == 0)
        sched_yield();
    else
        rte_pause();
}

void peer_cross_take(struct peer *peer, struct ring *ring, const uint8_t *stop) {
    struct rte_mempool *pool = peer->pool;
    uint64_t turns = 0;
    for (uint64_t number = 0;; number++) {
        struct line *line = &ring->lines[number % ring->len];
        while (__atomic_load_n(&line->filled, __ATOMIC_ACQUIRE) != 0) pause_for(ring, &turns);
        uint64_t taken = 0;
        while (taken < ring->line && !stopped(stop)) {
            void *object;
            if (rte_mempool_get(pool, &object) == 0)
                line->tags[taken++] = ((char *)object - peer->first) / RTE_CACHE_LINE_SIZE;
            else
                pause_for(ring, &turns);
        }
        __atomic_store_n(&line->filled, taken == 0 ? CLOSED : taken, __ATOMIC_RELEASE);
        if (taken == 0) return;
    }
}

uint64_t peer_cross_put(struct peer *peer, struct ring *ring) {
    struct rte_mempool *pool = peer->pool;
    uint64_t turns = 0;
    uint64_t puts = 0;
    for (uint64_t number = 0;;) {
        struct line *line = &ring->lines[number % ring->len];
        uint16_t filled = __atomic_load_n(&line->filled, __ATOMIC_ACQUIRE);
        if (filled == CLOSED) return puts;
        if (filled == 0) {
            pause_for(ring, &turns);
            continue;
        }
        for (unsigned i = 0; i < filled; i++)
            rte_mempool_put(pool, peer->first + (int16_t)line->tags[i] * RTE_CACHE_LINE_SIZE);
        __atomic_store_n(&line->filled, 0, __ATOMIC_RELEASE);
        number++;
        puts += filled;
    }
}

// How many objects this thread can get.
uint64_t peer_reachable(struct peer *peer) {
    void **objects = calloc(peer->tags, sizeof *objects);
    uint64_t taken = 0;
    while (taken < peer->tags && rte_mempool_get(peer->pool, &objects[taken]) == 0) taken++;
    for (uint64_t i = 0; i < taken; i++) rte_mempool_put(peer->pool, objects[i]);
    free(objects);
    return taken;
}
