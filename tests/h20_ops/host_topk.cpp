// Run topk.cu on a CPU: every thread of a cluster is a fibre, and a barrier lets the others run.
//
// Fibres run in an order drawn anew between barriers, so a missing barrier shows as a wrong result.
// Copies land at once, the earliest a device may do it. Built with the kernel's own constants.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#define TOPK_ON_HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct uint2 {
  uint32_t x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
struct Index {
  uint32_t x;
};

using std::max;
using std::min;

struct Barrier {
  int size = 0, arrived = 0, generation = 0;
  uint32_t any = 0, last_any = 0;
};

struct Block {
  void* shared;
  Barrier barrier;
  std::vector<Barrier> warps;
  std::vector<uint64_t> slots;
};

struct Fibre {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int block, thread;
  int generation;  // of the cluster's barrier at which it has arrived
  bool done;
};

constexpr size_t STACK = 64 * 1024;
static ucontext_t scheduler;
static std::vector<Block> blocks;
static Barrier cluster;
static Fibre* now;
static long progress;
static Index threadIdx, blockIdx;
static int first_block;

static void stop(const char* what) {
  std::fprintf(stderr, "host_topk: %s\n", what);
  std::abort();
}

static void give_way() { swapcontext(&now->context, &scheduler); }

// Returns the generation to wait for the end of.
static int arrive_at(Barrier& b, uint32_t any = 0) {
  const int generation = b.generation;
  b.any |= any;
  ++progress;
  if (++b.arrived == b.size) {
    b.arrived = 0;
    b.last_any = b.any;
    b.any = 0;
    ++b.generation;
  }
  return generation;
}

static void leave(Barrier& b, int generation) {
  while (b.generation == generation) give_way();
}

static void wait_at(Barrier& b, uint32_t any = 0) { leave(b, arrive_at(b, any)); }

static Block& own() { return blocks[now->block]; }
static void __syncthreads() { wait_at(own().barrier); }
static int __syncthreads_or(int value) {
  wait_at(own().barrier, value != 0);
  const int any = own().barrier.last_any;
  wait_at(own().barrier);
  return any;
}

template <class F>
static uint32_t over_warp(uint32_t value, F f) {
  Barrier& warp = own().warps[now->thread / 32];
  uint64_t* slots = &own().slots[now->thread / 32 * 32];
  slots[now->thread % 32] = value;
  wait_at(warp);
  const uint32_t result = f(slots, now->thread % 32);
  wait_at(warp);
  return result;
}

static uint32_t __shfl_up_sync(uint32_t, uint32_t value, int step) {
  return over_warp(value, [=](uint64_t* s, int l) { return uint32_t(s[l >= step ? l - step : l]); });
}
static uint32_t __shfl_sync(uint32_t, uint32_t value, int lane) {
  return over_warp(value, [=](uint64_t* s, int) { return uint32_t(s[lane % 32]); });
}
static uint32_t __reduce_min_sync(uint32_t, uint32_t value) {
  return over_warp(value, [](uint64_t* s, int) { return uint32_t(*std::min_element(s, s + 32)); });
}
static uint32_t __reduce_max_sync(uint32_t, uint32_t value) {
  return over_warp(value, [](uint64_t* s, int) { return uint32_t(*std::max_element(s, s + 32)); });
}
static uint32_t __reduce_add_sync(uint32_t, uint32_t value) {
  return over_warp(value, [](uint64_t* s, int) {
    uint64_t sum = 0;
    for (int i = 0; i < 32; ++i) sum += s[i];
    return uint32_t(sum);
  });
}

template <class F>
static uint32_t change(uint32_t* place, F f) {
  const uint32_t old = *place;
  *place = f(old);
  return old;
}
static uint32_t atomicAdd(uint32_t* p, uint32_t v) {
  return change(p, [=](uint32_t x) { return x + v; });
}
static uint32_t atomicOr(uint32_t* p, uint32_t v) {
  return change(p, [=](uint32_t x) { return x | v; });
}
static uint32_t atomicMin(uint32_t* p, uint32_t v) {
  return change(p, [=](uint32_t x) { return min(x, v); });
}
static uint32_t atomicMax(uint32_t* p, uint32_t v) {
  return change(p, [=](uint32_t x) { return max(x, v); });
}

static int __popc(uint32_t x) { return __builtin_popcount(x); }
static int __ffs(uint32_t x) { return __builtin_ffs(static_cast<int>(x)); }
static int __clz(int x) { return x == 0 ? 32 : __builtin_clz(x); }
static int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll(x); }
static uint32_t __float_as_uint(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
static float __uint_as_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}

namespace device {
inline void* shared_memory() { return own().shared; }
inline void barrier_init(uint64_t* barrier) { *barrier = 0; }
inline void barrier_init_fence() {}
inline void wait_for_previous_kernel() {}
inline uint32_t cluster_rank() { return now->block; }
inline uint32_t add_shared(uint32_t* place, uint32_t value) { return atomicAdd(place, value); }
inline void cluster_arrive() { now->generation = arrive_at(cluster); }
inline void cluster_wait() { leave(cluster, now->generation); }
inline void cluster_sync() { wait_at(cluster); }
inline void bulk_copy(void* target, const void* source, uint32_t bytes, uint64_t* barrier) {
  const uint64_t low = reinterpret_cast<uint64_t>(target) | reinterpret_cast<uint64_t>(source);
  if ((low | bytes) % 16 != 0 || bytes == 0) stop("a copy that is not of whole 16 bytes");
  std::memcpy(target, source, bytes);
  ++*barrier;  // phases completed
  ++progress;
}
inline void copy16(void* target, const void* source) { std::memcpy(target, source, 16); }
inline void copies_wait() {}
inline void barrier_wait(uint64_t* barrier, uint32_t parity) {
  while (*barrier % 2 == parity) give_way();
}
template <class T>
T* peer(T* place, uint32_t rank) {
  const auto base = static_cast<char*>(own().shared);
  return reinterpret_cast<T*>(static_cast<char*>(blocks[rank].shared) +
                              (reinterpret_cast<char*>(place) - base));
}
}  // namespace device

#include "topk.cu"

static const Params* params;

static void body() {
  topk(*params);
  now->done = true;
  ++progress;
  give_way();
}

static void run_cluster(int size, std::vector<Fibre>& fibres, std::mt19937& draw) {
  cluster = Barrier{size * THREADS};
  for (int b = 0; b < size; ++b) {
    std::memset(blocks[b].shared, 0xa5, sizeof(Shared));
    blocks[b].barrier = Barrier{THREADS};
    blocks[b].warps.assign(WARPS, Barrier{32});
    blocks[b].slots.assign(THREADS, 0);
  }
  for (int i = 0; i < size * THREADS; ++i) {
    Fibre& f = fibres[i];
    f.block = i / THREADS;
    f.thread = i % THREADS;
    f.done = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, body, 0);
  }
  for (bool running = true; running;) {
    running = false;
    const long before = progress;
    const int count = size * THREADS, start = draw() % count, step = draw() % 2 ? 1 : count - 1;
    for (int i = 0, at = start; i < count; ++i, at = (at + step) % count) {
      if (fibres[at].done) continue;
      running = true;
      now = &fibres[at];
      threadIdx.x = now->thread;
      blockIdx.x = first_block + now->block;
      swapcontext(&scheduler, &now->context);
    }
    if (running && progress == before) stop("threads wait for each other at different barriers");
  }
}

// All rows, one after the other.
extern "C" void run(const Params* given, int rows, uint32_t seed) {
  params = given;
  const int size = given->blocks;
  std::mt19937 draw(seed);
  std::vector<Fibre> fibres(size * THREADS);
  for (Fibre& f : fibres) f.stack = std::make_unique<char[]>(STACK);
  blocks.assign(size, Block{});
  for (Block& b : blocks) b.shared = std::aligned_alloc(128, sizeof(Shared));
  for (int row = 0; row < rows; ++row) {
    first_block = row * size;
    run_cluster(size, fibres, draw);
  }
  for (Block& b : blocks) std::free(b.shared);
}
