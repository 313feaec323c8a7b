// Logits of candidate blocks: every row has its own list of blocks of 8 or 16 keys. A producer
// warpgroup gathers the keys of 128 columns a stage; the products are with the heads of one token.
#pragma once

#include "mqa_logits_prefill_layout.cuh"

namespace logits {

constexpr int CANDIDATE_STAGES = 4;
constexpr int CANDIDATE_MATH_WARPGROUPS = 2;
constexpr int SEGMENT_STEPS = 16;  // of one unit of work

struct CandidateShared {
  alignas(1024) uint8_t q[2][2 * HEADS * ROW_BYTES];
  alignas(1024) uint8_t keys[CANDIDATE_STAGES][CANDIDATE_STEP_KEYS * ROW_BYTES];
  alignas(16) uint32_t key_scale[CANDIDATE_STAGES][CANDIDATE_STEP_KEYS];  // 0: no logit there
  alignas(16) CandidateMeta meta[2];
  int2 steps[2];  // first and number; none ends the walk
  alignas(8) uint64_t keys_ready[CANDIDATE_STAGES];
  uint64_t keys_free[CANDIDATE_STAGES];
  uint64_t q_ready[2];
  uint64_t q_free[2];
};
static_assert(sizeof(CandidateShared) <= CANDIDATE_SHARED_BYTES, "the wrapper asks for too little");

__device__ __forceinline__ void gather_candidates(const Params& p, CandidateShared& shared) {
  const int thread = threadIdx.x % WARPGROUP, chunk = thread % 8, line = thread / 8;
  const int halves = p.heads > HEADS ? 2 : 1;
  const uint32_t q_bytes = halves * HEADS * ROW_BYTES;
  const int shift = p.block_shift;
  const int segments = (p.num_blocks * (1 << shift) + SEGMENT_STEPS * CANDIDATE_STEP_KEYS - 1) /
                       (SEGMENT_STEPS * CANDIDATE_STEP_KEYS);
  const int64_t units = static_cast<int64_t>(p.rows) * segments;
  // Copy i of a thread brings key 16 i + line; its row in the tile differs by 16 rows from copy to copy.
  const uint32_t target = sm90::shared_address(shared.keys) + swizzled(tile_row_of_key(line), chunk);
  const uint32_t scale_target = sm90::shared_address(shared.key_scale) + line * 4;
  int stage = 0, buffer = 0;
  uint32_t parity = 1, q_parity = 1;
  for (int64_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int row = static_cast<int>(unit / segments), segment = static_cast<int>(unit % segments);
    const int start = __ldg(p.ks + row);
    const int length = row_length(p, start, __ldg(p.ke + row));
    const int slots = min(p.num_blocks, (length + (1 << shift) - 1) >> shift);
    const int first = segment * SEGMENT_STEPS;
    const int all_steps = ((slots << shift) + CANDIDATE_STEP_KEYS - 1) / CANDIDATE_STEP_KEYS;
    const int steps = min(SEGMENT_STEPS, all_steps - first);
    if (steps <= 0) continue;
    const int* ids = p.blocks + row * p.blocks_row_stride;
    const auto slot_of = [&](int step, int i) {
      return ((first + step) * CANDIDATE_STEP_KEYS + 16 * i + line) >> shift;
    };
    int next[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int slot = slot_of(0, i);
      next[i] = sm90::load_or(ids + slot, slot < slots, -1);
    }
    if (thread == 0) {
      const uint32_t q_ready = sm90::shared_address(&shared.q_ready[buffer]);
      sm90::mbarrier_wait(sm90::shared_address(&shared.q_free[buffer]), q_parity);
      shared.steps[buffer] = make_int2(first, steps);
      arrive_and_expect(q_ready, q_bytes + sizeof(CandidateMeta));
      bulk_copy(sm90::shared_address(shared.q[buffer]),
                p.q_tiles + static_cast<int64_t>(row) * q_bytes, q_bytes, q_ready);
      bulk_copy(sm90::shared_address(&shared.meta[buffer]),
                p.q_meta + static_cast<int64_t>(row) * sizeof(CandidateMeta), sizeof(CandidateMeta),
                q_ready);
    }
    if (buffer == 1) q_parity ^= 1;
    buffer ^= 1;
    for (int step = 0; step < steps; ++step) {
      int keys[8];
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int id = next[i];
        const int inside = (16 * i + line) & ((1 << shift) - 1);
        const bool there = id >= 0 && id <= ((length - 1) >> shift) && (id << shift) + inside < length;
        keys[i] = there ? start + (id << shift) + inside : -1;
        const int slot = slot_of(step + 1, i);
        next[i] = sm90::load_or(ids + slot, step + 1 < steps && slot < slots, -1);
      }
      sm90::mbarrier_wait(sm90::shared_address(&shared.keys_free[stage]), parity);
      const uint32_t stage_target = target + stage * (CANDIDATE_STEP_KEYS * ROW_BYTES);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool there = keys[i] >= 0;
        const int64_t key = there ? keys[i] : 0;
        const int at = swizzled(tile_row_of_key(static_cast<int>(key) & 63), chunk);
        sm90::copy16_or_zero(stage_target + i * 16 * ROW_BYTES,
                             p.k_tiles + (key & ~int64_t{63}) * ROW_BYTES + at, there);
        if (chunk == 0) {
          copy4_or_zero(scale_target + (stage * CANDIDATE_STEP_KEYS + 16 * i) * 4, p.k_scale + key,
                        there);
        }
      }
      sm90::mbarrier_arrive_after_copies(sm90::shared_address(&shared.keys_ready[stage]));
      if (++stage == CANDIDATE_STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  if (thread == 0) {
    sm90::mbarrier_wait(sm90::shared_address(&shared.q_free[buffer]), q_parity);
    shared.steps[buffer] = make_int2(0, 0);
    sm90::mbarrier_arrive(sm90::shared_address(&shared.q_ready[buffer]));
  }
}

__device__ __forceinline__ void start_candidate_products(float (&d)[16], uint64_t keys, uint64_t q) {
#pragma unroll
  for (int k = 0; k < 4; ++k) sm90::wgmma_m64n32k32_e4m3(d, keys + 2 * k, q + 2 * k, k > 0);
}
__device__ __forceinline__ void start_candidate_products(float (&d)[32], uint64_t keys, uint64_t q) {
#pragma unroll
  for (int k = 0; k < 4; ++k) sm90::wgmma_m64n64k32_e4m3(d, keys + 2 * k, q + 2 * k, k > 0);
}

__device__ __forceinline__ float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

template <int HALVES, typename Out>
__device__ __forceinline__ void compute_candidates(const Params& p, CandidateShared& shared,
                                                   int warpgroup) {
  constexpr int OWN_HEADS = 8 * HALVES;
  const int lane = threadIdx.x % 32, c = lane % 4;
  const int own_column =
      warpgroup * TILE_KEYS + (threadIdx.x % WARPGROUP) / 32 * 16 + 2 * (lane / 4);
  const bool leader = lane == 0;
  const uint64_t q_tile = sm90::swizzled_tile(sm90::shared_address(shared.q), 0, 1024);
  const uint64_t key_tile = sm90::swizzled_tile(
      sm90::shared_address(shared.keys) + warpgroup * KEY_TILE_BYTES, 0, 1024);
  int stage = 0, buffer = 0;
  uint32_t parity = 0, q_parity = 0;
  float products[16 * HALVES];
  while (true) {
    sm90::mbarrier_wait(sm90::shared_address(&shared.q_ready[buffer]), q_parity);
    const int2 steps = shared.steps[buffer];
    if (steps.y == 0) return;
    const CandidateMeta& meta = shared.meta[buffer];
    float weights[OWN_HEADS];
#pragma unroll
    for (int o = 0; o < OWN_HEADS; ++o) weights[o] = meta.weights[OWN_HEADS * c + o];
    const int token_scale = meta.row.scale;
    Out* out = static_cast<Out*>(p.out) + meta.row.offset + steps.x * CANDIDATE_STEP_KEYS + own_column;
    const uint64_t q = q_tile + buffer * (sizeof(shared.q[0]) >> 4);
    for (int step = 0; step < steps.y; ++step) {
      sm90::mbarrier_wait(sm90::shared_address(&shared.keys_ready[stage]), parity);
      sm90::fence_async_proxy();
      const uint2 scale = *reinterpret_cast<const uint2*>(&shared.key_scale[stage][own_column]);
      sm90::pin(products);
      sm90::wgmma_fence();
      start_candidate_products(products,
                               key_tile + stage * ((CANDIDATE_STEP_KEYS * ROW_BYTES) >> 4), q);
      sm90::wgmma_commit();
      sm90::wgmma_wait<0>();
      sm90::pin(products);
      if (leader) sm90::mbarrier_arrive(sm90::shared_address(&shared.keys_free[stage]));
      float a = 0.0f, b = 0.0f;
#pragma unroll
      for (int o = 0; o < OWN_HEADS; ++o) {
        const int at = 4 * (o / 2) + o % 2;
        a = add_head(weights[o], products[at], a, o);
        b = add_head(weights[o], products[at + 2], b, o);
      }
      a = sum_of_four(a);
      b = sum_of_four(b);
      if (c == 0) {
        a = scale.x != 0 ? scaled(a, scale.x, token_scale) : -INFINITY;
        b = scale.y != 0 ? scaled(b, scale.y, token_scale) : -INFINITY;
        store_pair(out + step * CANDIDATE_STEP_KEYS, a, b);
      }
      if (++stage == CANDIDATE_STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    __syncwarp();
    if (leader) sm90::mbarrier_arrive(sm90::shared_address(&shared.q_free[buffer]));
    if (buffer == 1) q_parity ^= 1;
    buffer ^= 1;
  }
}

}  // namespace logits
