// The threads of one block as fibres, for kernels' sources built as host code: they run in turn and
// change at every barrier and shuffle. A block in which no thread advances any more is aborted.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

using std::max;
using std::min;

constexpr int MOST_THREADS = 640;

struct Index { unsigned x; };
static Index threadIdx, blockIdx, gridDim;
static unsigned block_size;
static ucontext_t fibres[MOST_THREADS], scheduler;
static bool running[MOST_THREADS];
static char stacks[MOST_THREADS][1 << 16];
static long idle;  // changes of fibre since one advanced

static void pause() {
    const unsigned self = threadIdx.x;
    if (++idle > 50'000'000) { std::fprintf(stderr, "no thread of block %u advances\n", blockIdx.x); std::abort(); }
    swapcontext(&fibres[self], &scheduler);
    threadIdx.x = self;
}

struct Barrier {
    unsigned arrived = 0, phase = 0;
    void wait(unsigned count) {
        const unsigned mine = phase;
        if (++arrived == count) { arrived = 0; ++phase; idle = 0; } else while (phase == mine) pause();
    }
};
static Barrier block_barrier, warp_barriers[MOST_THREADS / 32];
static uint32_t words[MOST_THREADS][4];

static void __syncthreads() { block_barrier.wait(block_size); }
static void __syncwarp() { warp_barriers[threadIdx.x / 32].wait(32); }

template <typename T> static T exchange(T value, int lane) {
    static_assert(sizeof(T) <= sizeof(words[0]), "one thread's words hold it");
    std::memcpy(words[threadIdx.x], &value, sizeof(T));
    __syncwarp();
    T other;
    std::memcpy(&other, words[(threadIdx.x & ~31u) + lane], sizeof(T));
    __syncwarp();
    return other;
}
template <typename T> static T __shfl_xor_sync(unsigned, T v, int mask) { return exchange(v, (threadIdx.x & 31) ^ mask); }
template <typename T> static T __shfl_sync(unsigned, T v, int lane) { return exchange(v, lane & 31); }
template <typename T> static T __shfl_up_sync(unsigned, T v, int by) {
    const int lane = threadIdx.x & 31;
    return exchange(v, lane >= by ? lane - by : lane);
}
static int __reduce_max_sync(unsigned mask, int v) {
    for (int by = 1; by < 32; by *= 2) v = max(v, __shfl_xor_sync(mask, v, by));
    return v;
}
template <typename T> static T __ldg(const T* at) { return *at; }

// Run every thread of a block to its end; enter(thread) calls the kernel.
static void (*entered)(int);
static void run_thread(int thread) {
    threadIdx.x = thread;
    entered(thread);
    running[thread] = false;
}
static void run_block(unsigned threads, void (*enter)(int)) {
    block_size = threads;
    entered = enter;
    idle = 0;
    for (unsigned t = 0; t < threads; ++t) {
        getcontext(&fibres[t]);
        fibres[t].uc_stack.ss_sp = stacks[t];
        fibres[t].uc_stack.ss_size = sizeof(stacks[t]);
        fibres[t].uc_link = &scheduler;
        makecontext(&fibres[t], reinterpret_cast<void (*)()>(run_thread), 1, t);
        running[t] = true;
    }
    while (std::find(running, running + threads, true) != running + threads)
        for (unsigned t = 0; t < threads; ++t) {
            threadIdx.x = t;
            if (running[t]) swapcontext(&scheduler, &fibres[t]);
        }
}
