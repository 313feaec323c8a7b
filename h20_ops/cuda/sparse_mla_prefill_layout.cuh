// What a launch is given, how a block divides its shared memory, and what one unit of work is.
#pragma once

#include "sm90.cuh"

namespace prefill {

using bf16 = __nv_bfloat16;

struct Params {
  const bf16* q;
  const bf16* kv;
  const int* indices;
  const float* sink;        // may be null
  const int* topk_length;   // may be null
  bf16* out;
  float* max_logits;
  float* lse;
  int64_t q_row_stride;     // strides in elements
  int64_t q_head_stride;
  int64_t kv_row_stride;
  int64_t indices_row_stride;
  int s_kv;
  int h_q;
  int head_groups;
  int topk;
  int num_works;
  float sm_scale;
};

constexpr int HEADS = 64;
constexpr int KEYS = 64;
constexpr int DIM = 512;
constexpr int TILE_BYTES = 64 * 128;             // 64 rows of 64 bf16, one swizzled tile
constexpr int HALF_BYTES = 4 * TILE_BYTES;       // [64, 256]
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = 2 * WARPGROUP;
constexpr float RESCALE_LOG2 = 8.0f;
constexpr int CONSUMER_REGISTERS = 232;
constexpr int PRODUCER_REGISTERS = 40;

struct Shared {
  alignas(1024) uint8_t q[8 * TILE_BYTES];
  alignas(1024) uint8_t kv[4][HALF_BYTES];       // index 2 * (key block % 2) + half
  // Probabilities a warpgroup hands over. Those of even blocks have two places: the right side may
  // still be reading one while the left side, already served by the right one, writes the next.
  alignas(1024) uint8_t p[3][TILE_BYTES];
  float reference[2][HEADS];                     // the maximum p is relative to, in log2 units
  float sum[2][2][HEADS];
  float top[2][2][HEADS];
  alignas(8) uint64_t q_ready;
  uint64_t q_free;
  uint64_t kv_ready[4];
  uint64_t kv_free[4];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the wrapper asks for too little shared memory");

enum NamedBarrier { FIRST_P_READY = 1, SECOND_P_READY = 2, TOTALS_READY = 3 };

// One (query, group of heads). There is always one key block at least, all masked if need be.
struct Work {
  int query, head_group;
  int count;    // positions of the index row that count
  int blocks;   // key blocks to go through
  const int* indices;
};

__device__ __forceinline__ Work describe(const Params& p, int number) {
  Work work;
  work.query = number;
  work.head_group = 0;
  if (p.head_groups > 1) {
    work.query = number / p.head_groups;
    work.head_group = number % p.head_groups;
  }
  work.count = p.topk;
  if (p.topk_length != nullptr) {
    work.count = max(0, min(p.topk, __ldg(p.topk_length + work.query)));
  }
  work.blocks = max(1, (work.count + KEYS - 1) / KEYS);
  work.indices = p.indices + work.query * p.indices_row_stride;
  return work;
}

}  // namespace prefill
