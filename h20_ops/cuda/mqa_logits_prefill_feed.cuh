// What a dense block keeps in shared memory, and the threads that fill it: one for ranges of keys, a
// warp for unions of candidates.
#pragma once

#include "mqa_logits_prefill_layout.cuh"

namespace logits {

struct BlockInfo {
  int first_key;
  int steps;  // 0 ends the walk
};

struct DenseShared {
  alignas(1024) uint8_t q[2][Q_TILES * Q_TILE_BYTES];
  alignas(1024) uint8_t keys[STAGES][STEP_KEYS * ROW_BYTES];
  alignas(16) uint32_t key_scale[STAGES][STEP_KEYS];
  alignas(16) uint16_t piece_slots[STAGES][STEP_PIECES][2 * TOKENS];  // of a union
  alignas(16) DenseMeta meta[2][Q_TILES];
  BlockInfo info[2];
  alignas(8) uint64_t keys_ready[STAGES];
  uint64_t keys_free[STAGES];
  uint64_t q_ready[2];
  uint64_t q_free[2];
};
static_assert(sizeof(DenseShared) <= DENSE_SHARED_BYTES, "the wrapper asks for too little");

__device__ __forceinline__ void feed_dense(const Params& p, DenseShared& shared) {
  const int total = *p.total;
  const int64_t cta = blockIdx.x, ctas = gridDim.x;
  int left = static_cast<int>(total * (cta + 1) / ctas) - static_cast<int>(total * cta / ctas);
  const int2 start = p.starts[cta];
  int block = start.x, skip = start.y, stage = 0, buffer = 0;
  uint32_t parity = 1, q_parity = 1;
  while (true) {
    int2 range = make_int2(0, 0);
    if (left > 0) {
      range = p.ranges[block];
      if (range.y == 0) {
        ++block;
        continue;
      }
    }
    const int steps = left > 0 ? min(left, range.y - skip) : 0;
    const int first = (range.x + skip) * STEP_KEYS;
    const uint32_t q_ready = sm90::shared_address(&shared.q_ready[buffer]);
    sm90::mbarrier_wait(sm90::shared_address(&shared.q_free[buffer]), q_parity);
    shared.info[buffer] = BlockInfo{first, steps};
    if (steps == 0) {
      sm90::mbarrier_arrive(q_ready);
      return;
    }
    arrive_and_expect(q_ready, Q_TILES * (Q_TILE_BYTES + sizeof(DenseMeta)));
    bulk_copy(sm90::shared_address(shared.q[buffer]),
              p.q_tiles + static_cast<int64_t>(block) * Q_TILES * Q_TILE_BYTES,
              Q_TILES * Q_TILE_BYTES, q_ready);
    bulk_copy(sm90::shared_address(shared.meta[buffer]),
              p.q_meta + static_cast<int64_t>(block) * Q_TILES * sizeof(DenseMeta),
              Q_TILES * sizeof(DenseMeta), q_ready);
    if (buffer == 1) q_parity ^= 1;
    buffer ^= 1;
    for (int step = 0; step < steps; ++step) {
      const int64_t key = first + step * STEP_KEYS;
      const uint32_t ready = sm90::shared_address(&shared.keys_ready[stage]);
      sm90::mbarrier_wait(sm90::shared_address(&shared.keys_free[stage]), parity);
      arrive_and_expect(ready, STEP_KEYS * (ROW_BYTES + 4));
      bulk_copy(sm90::shared_address(shared.keys[stage]), p.k_tiles + key * ROW_BYTES,
                STEP_KEYS * ROW_BYTES, ready);
      bulk_copy(sm90::shared_address(shared.key_scale[stage]), p.k_scale + key, STEP_KEYS * 4, ready);
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
    left -= steps;
    skip = 0;
    ++block;
  }
}

// One warp: the pieces of a union, 8 keys each, a lane a piece.
__device__ __forceinline__ void feed_union(const Params& p, const TensorMap& key_matrix,
                                           DenseShared& shared) {
  const int lane = threadIdx.x % 32;
  const int units = p.row_blocks * p.union_segments;
  const int last_scale = p.key_tiles * TILE_KEYS - 1;
  int stage = 0, buffer = 0;
  uint32_t parity = 1, q_parity = 1;
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const int block = unit / p.union_segments, segment = unit % p.union_segments;
    const int all = (p.union_counts[block] + STEP_PIECES - 1) / STEP_PIECES;
    const int first = static_cast<int>(static_cast<int64_t>(all) * segment / p.union_segments);
    const int steps =
        static_cast<int>(static_cast<int64_t>(all) * (segment + 1) / p.union_segments) - first;
    if (steps == 0) continue;
    const int64_t base = static_cast<int64_t>(block) * p.union_capacity + first * STEP_PIECES;
    const int* keys = p.union_keys + base;
    int key = lane < STEP_PIECES ? keys[lane] : 0;
    sm90::mbarrier_wait(sm90::shared_address(&shared.q_free[buffer]), q_parity);
    if (lane == 0) {
      const uint32_t q_ready = sm90::shared_address(&shared.q_ready[buffer]);
      shared.info[buffer] = BlockInfo{0, steps};
      arrive_and_expect(q_ready, Q_TILES * (Q_TILE_BYTES + sizeof(DenseMeta)));
      bulk_copy(sm90::shared_address(shared.q[buffer]),
                p.q_tiles + static_cast<int64_t>(block) * Q_TILES * Q_TILE_BYTES,
                Q_TILES * Q_TILE_BYTES, q_ready);
      bulk_copy(sm90::shared_address(shared.meta[buffer]),
                p.q_meta + static_cast<int64_t>(block) * Q_TILES * sizeof(DenseMeta),
                Q_TILES * sizeof(DenseMeta), q_ready);
    }
    if (buffer == 1) q_parity ^= 1;
    buffer ^= 1;
    for (int step = 0; step < steps; ++step) {
      const int now = key;
      if (step + 1 < steps && lane < STEP_PIECES) key = keys[(step + 1) * STEP_PIECES + lane];
      const uint32_t ready = sm90::shared_address(&shared.keys_ready[stage]);
      sm90::mbarrier_wait(sm90::shared_address(&shared.keys_free[stage]), parity);
      if (lane == 0) {
        arrive_and_expect(ready, STEP_KEYS * ROW_BYTES + STEP_PIECES * 16);
        bulk_copy(sm90::shared_address(shared.piece_slots[stage]),
                  p.union_slots + base + step * STEP_PIECES, STEP_PIECES * 16, ready);
      }
      __syncwarp();
      if (lane < STEP_PIECES) {
        copy_piece(sm90::shared_address(shared.keys[stage]) + lane * PIECE_KEYS * ROW_BYTES,
                   key_matrix, now, ready);
      }
#pragma unroll
      for (int i = 0; i < STEP_KEYS / 32; ++i) {
        const int piece = __shfl_sync(0xffffffffu, now, 4 * i + lane / PIECE_KEYS);
        copy4(sm90::shared_address(&shared.key_scale[stage][32 * i + lane]),
              p.k_scale + max(0, min(piece + lane % PIECE_KEYS, last_scale)));
      }
      sm90::mbarrier_arrive_after_copies(ready);
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
  sm90::mbarrier_wait(sm90::shared_address(&shared.q_free[buffer]), q_parity);
  if (lane == 0) {
    shared.info[buffer] = BlockInfo{0, 0};
    sm90::mbarrier_arrive(sm90::shared_address(&shared.q_ready[buffer]));
  }
}

}  // namespace logits
