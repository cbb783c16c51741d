// The loops of loops.rs over a mempool of DPDK, whose get and put are inline functions of its headers.
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <rte_eal.h>
#include <rte_lcore.h>
#include <rte_mempool.h>
#include <rte_pause.h>

enum { LINE = 16, LINES = 8, BETWEEN_LOOKS = 64, CACHE = 16 };
#define CLOSED (UINT64_C(1) << 63)

// As in ring.rs.
struct count {
    uint64_t value;
} __attribute__((aligned(128)));
struct ring {
    struct count filled, emptied;
    uint32_t slots[LINES][LINE];
    uint64_t lines;
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
    char *first; // object: a tag in a ring is the distance from it
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

static void pause_for(unsigned *turns) {
    if (++*turns % 64 == 0)
        sched_yield();
    else
        rte_pause();
}

void peer_cross_take(struct peer *peer, struct ring *ring, const uint8_t *stop) {
    struct rte_mempool *pool = peer->pool;
    void *objects[LINE];
    for (uint64_t line = 0;; line++) {
        unsigned turns = 0, taken = 0;
        while (taken < LINE) {
            if (rte_mempool_get(pool, &objects[taken]) == 0)
                taken++;
            else if (stopped(stop))
                break;
            else
                pause_for(&turns);
        }
        if (taken < LINE || stopped(stop)) {
            while (taken > 0) rte_mempool_put(pool, objects[--taken]);
            break;
        }
        while (line >= __atomic_load_n(&ring->emptied.value, __ATOMIC_ACQUIRE) + ring->lines) pause_for(&turns);
        for (unsigned i = 0; i < LINE; i++) ring->slots[line % LINES][i] = (char *)objects[i] - peer->first;
        __atomic_store_n(&ring->filled.value, line + 1, __ATOMIC_RELEASE);
    }
    __atomic_fetch_or(&ring->filled.value, CLOSED, __ATOMIC_RELEASE);
}

uint64_t peer_cross_put(struct peer *peer, struct ring *ring) {
    struct rte_mempool *pool = peer->pool;
    unsigned turns = 0;
    for (uint64_t line = 0;;) {
        uint64_t value = __atomic_load_n(&ring->filled.value, __ATOMIC_ACQUIRE), filled = value & ~CLOSED;
        if (filled == line && value & CLOSED) return filled * LINE;
        if (filled == line) pause_for(&turns);
        for (; line < filled; line++) {
            for (unsigned i = 0; i < LINE; i++) rte_mempool_put(pool, peer->first + (int32_t)ring->slots[line % LINES][i]);
            __atomic_store_n(&ring->emptied.value, line + 1, __ATOMIC_RELEASE);
        }
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
