// The threads of a block: coroutines that take turns at every barrier and shuffle, so what they tell each other is right.
//
// A thread runs until it waits for others. Barriers count those that are still alive, as cards since Volta do. What happens
// between two barriers is in the order of the threads: races do not show, nor does a missing fence. Masks of warps are not
// looked at. The switch between coroutines is in assembly for x86-64.
#pragma once
#include "words.h"

constexpr unsigned PRETEND_WARP = 32, PRETEND_THREADS = 1024;

// Threads that wait for each other: those of a block, or of a warp.
struct pretend_barrier {
    unsigned alive, arrived, generation;

    void opens()
    {
        arrived = 0;
        ++generation;
    }

    bool complete() const { return alive && arrived == alive; }
};

struct pretend_coroutine {
    void *stack;
    bool done;
};

static pretend_coroutine pretend_coroutines[PRETEND_THREADS];
static void *pretend_scheduler;
static unsigned pretend_current;
static pretend_barrier pretend_block, pretend_warps[PRETEND_THREADS / PRETEND_WARP];
static void (*pretend_work)(void *);
static void *pretend_told;

// Keeps the registers that a call must keep on this stack, notes where it ends, and goes on with the other one.
extern "C" void pretend_switch(void **from, void *to);
asm(R"(
    .text
    .local pretend_switch
    .type pretend_switch,@function
pretend_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp,(%rdi)
    movq %rsi,%rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
constexpr int PRETEND_REGISTERS = 6;

static void pretend_yield() { pretend_switch(&pretend_coroutines[pretend_current].stack, pretend_scheduler); }

static void pretend_wait(pretend_barrier &barrier)
{
    unsigned generation = barrier.generation;
    ++barrier.arrived;
    if (barrier.complete())
        barrier.opens();
    else
        while (generation == barrier.generation)
            pretend_yield();
}

static void pretend_leave(pretend_barrier &barrier)
{
    --barrier.alive;
    if (barrier.complete())
        barrier.opens();
}

static pretend_barrier &pretend_warp() { return pretend_warps[pretend_current / PRETEND_WARP]; }

// What a coroutine begins with; it is never returned from.
static void pretend_enter()
{
    pretend_work(pretend_told);
    pretend_coroutines[pretend_current].done = true;
    pretend_leave(pretend_block);
    pretend_leave(pretend_warp());
    pretend_yield();
    abort();
}

static inline void __syncthreads() { pretend_wait(pretend_block); }
static inline void __syncwarp(unsigned = ~0u) { pretend_wait(pretend_warp()); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline unsigned __activemask() { return ~0u; }
static inline long long clock64() { return 0; }

// ---- what the threads of a warp tell each other

static unsigned long long pretend_lanes[PRETEND_THREADS][2];

static inline unsigned pretend_lane() { return pretend_current % PRETEND_WARP; }
static inline unsigned pretend_first() { return pretend_current - pretend_lane(); }

template <typename T> static T pretend_exchange(T value, unsigned lane)
{
    static_assert(sizeof(T) <= sizeof(pretend_lanes[0]), "");
    memcpy(&pretend_lanes[pretend_current], &value, sizeof(T));
    __syncwarp();
    T found;
    memcpy(&found, &pretend_lanes[pretend_first() + lane], sizeof(T));
    __syncwarp();
    return found;
}

template <typename T> static T __shfl_xor_sync(unsigned, T value, int mask, int = PRETEND_WARP)
{
    return pretend_exchange(value, (pretend_lane() ^ mask) % PRETEND_WARP);
}

template <typename T> static T __shfl_sync(unsigned, T value, int lane, int width = PRETEND_WARP)
{
    return pretend_exchange(value, (pretend_lane() & ~(width - 1)) + (lane & (width - 1)));
}

template <typename T> static T __shfl_down_sync(unsigned, T value, unsigned by, int width = PRETEND_WARP)
{
    unsigned lane = pretend_lane();
    bool within = (lane & (width - 1)) + by < (unsigned)width;
    return pretend_exchange(value, within ? lane + by : lane);
}

template <typename T> static T __shfl_up_sync(unsigned, T value, unsigned by, int width = PRETEND_WARP)
{
    unsigned lane = pretend_lane();
    bool within = (lane & (width - 1)) >= by;
    return pretend_exchange(value, within ? lane - by : lane);
}

static inline unsigned __ballot_sync(unsigned, int predicate)
{
    unsigned threads = blockDim.x * blockDim.y * blockDim.z, found = 0;
    pretend_lanes[pretend_current][0] = predicate != 0;
    __syncwarp();
    for (unsigned lane = 0; lane < PRETEND_WARP && pretend_first() + lane < threads; ++lane)
        if (pretend_lanes[pretend_first() + lane][0])
            found |= 1u << lane;
    __syncwarp();
    return found;
}

static inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
