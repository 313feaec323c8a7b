// Dense logits: a CTA walks over blocks of rows (two tiles of B, kept in shared memory) and the keys of
// their ranges, 64 keys a warpgroup and step. One thread feeds keys and queries by bulk copies. A
// warpgroup has the products with one tile of B in flight while it sums heads of the other.
#pragma once

#include <type_traits>

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
  alignas(16) int piece_keys[STAGES][STEP_PIECES];                  // of a union
  alignas(16) uint16_t piece_slots[STAGES][STEP_PIECES][2 * TOKENS];
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
        arrive_and_expect(ready, STEP_KEYS * ROW_BYTES + STEP_PIECES * (4 + 16));
        const int64_t at = base + step * STEP_PIECES;
        bulk_copy(sm90::shared_address(shared.piece_keys[stage]), p.union_keys + at, STEP_PIECES * 4,
                  ready);
        bulk_copy(sm90::shared_address(shared.piece_slots[stage]), p.union_slots + at,
                  STEP_PIECES * 16, ready);
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
              p.k_scale + min(piece + lane % PIECE_KEYS, last_scale));
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

// Where a thread's token writes. What else is known of its row stays in shared memory: inside the ranges
// of all tokens of a block it is not needed.
template <typename Out>
struct Target {
  Out* key_0;  // where key 0 would go
  int scale;
  const RowInfo* row;
};

template <typename Out>
__device__ __forceinline__ void store_columns(const Target<Out>& target, int key, float a, float b) {
  const RowInfo& row = *target.row;
  const int column = key - row.start;
  a = static_cast<uint32_t>(column) < static_cast<uint32_t>(row.length) ? a : -INFINITY;
  b = static_cast<uint32_t>(column + 1) < static_cast<uint32_t>(row.length) ? b : -INFINITY;
  const bool first = static_cast<uint32_t>(column) < static_cast<uint32_t>(row.stop);
  const bool second = static_cast<uint32_t>(column + 1) < static_cast<uint32_t>(row.stop);
  if ((row.start & 1) == 0) {
    if (first) store_pair(target.key_0 + key, a, b);
  } else {
    if (first) store_one(target.key_0 + key, a);
    if (second) store_one(target.key_0 + key + 1, b);
  }
}

// Multiply by the powers of two of a token and two keys.
__device__ __forceinline__ void scale_pair(float& a, float& b, uint2 key_scale, int token_scale) {
  const uint32_t x = key_scale.x + static_cast<uint32_t>(token_scale);
  const uint32_t y = key_scale.y + static_cast<uint32_t>(token_scale);
  if (max(x - 0x00800000u, y - 0x00800000u) < 0x7F000000u) {
    a *= __uint_as_float(x);
    b *= __uint_as_float(y);
  } else {
    a = scaled(a, key_scale.x, token_scale);
    b = scaled(b, key_scale.y, token_scale);
  }
}

// What a thread knows of its two rows of a step when dense: keys 2 g and 2 g + 1 of its 16.
struct NeighbouringKeys {
  int key;
  bool inside;  // all tokens of the block see all keys of the step, from even starts
  uint2 scale;
};

// And of a union: key g of two pieces.
struct PieceKeys {
  int keys[2];
  uint2 scale;
  uint32_t slots[2][2];  // of the pieces, for the tokens of the two tiles
};

template <typename Out>
__device__ __forceinline__ void store_slot(const Target<Out>& target, int key, int line, uint32_t slot,
                                           float value) {
  const RowInfo& row = *target.row;
  const bool valid = static_cast<uint32_t>(key - row.start) < static_cast<uint32_t>(row.length);
  if (slot != NO_SLOT) {
    store_one(target.key_0 + (row.start + static_cast<int>(slot) * PIECE_KEYS + line),
              valid ? value : -INFINITY);
  }
}

// Add a tile's 32 heads to the four classes of two keys.
__device__ __forceinline__ void add_heads(const float (&products)[64], const float* weights,
                                          float (&sums)[8]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int at = 4 * (i / 2) + i % 2;
    sums[i / 8] = add_head(weights[i], products[at], sums[i / 8], i % 8);
    sums[4 + i / 8] = add_head(weights[i], products[at + 2], sums[4 + i / 8], i % 8);
  }
}

__device__ __forceinline__ void zero(float (&sums)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[i] = 0.0f;
}

template <typename Out>
__device__ __forceinline__ void finish(const float (&sums)[8], const Target<Out>& target, int,
                                       const NeighbouringKeys& at) {
  float a = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float b = (sums[4] + sums[5]) + (sums[6] + sums[7]);
  scale_pair(a, b, at.scale, target.scale);
  if (at.inside) store_pair(target.key_0 + at.key, a, b);
  else store_columns(target, at.key, a, b);
}

template <typename Out>
__device__ __forceinline__ void finish(const float (&sums)[8], const Target<Out>& target, int tile,
                                       const PieceKeys& at) {
  float a = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  float b = (sums[4] + sums[5]) + (sums[6] + sums[7]);
  scale_pair(a, b, at.scale, target.scale);
  const int line = threadIdx.x % 32 / 4;
  store_slot(target, at.keys[0], line, at.slots[0][tile], a);
  store_slot(target, at.keys[1], line, at.slots[1][tile], b);
}

__device__ __forceinline__ void start_products(float (&products)[64], uint64_t keys, uint64_t q) {
  sm90::pin(products);
  sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sm90::wgmma_m64n128k32_e4m3(products, keys + 2 * k, q + 2 * k, k > 0);
  }
  sm90::wgmma_commit();
}

__device__ __forceinline__ void load_weights(float (&weights)[32], const float* source) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 four = sm90::load_shared16(sm90::shared_address(source + 4 * i));
    weights[4 * i] = __uint_as_float(four.x);
    weights[4 * i + 1] = __uint_as_float(four.y);
    weights[4 * i + 2] = __uint_as_float(four.z);
    weights[4 * i + 3] = __uint_as_float(four.w);
  }
}

template <typename Out>
__device__ __forceinline__ Target<Out> target_of(const Params& p, const RowInfo& row) {
  return {static_cast<Out*>(p.out) + row.offset - row.start, row.scale, &row};
}

template <int HALVES, typename Out, bool UNION>
__device__ __forceinline__ void compute_dense(const Params& p, DenseShared& shared, int number) {
  static_assert(!SPLIT || HALVES == 1, "the halves of 64 heads have to be added up by one warpgroup");
  const int warpgroup = SPLIT ? number % KEY_WARPGROUPS : number;  // of the keys
  const int tile = SPLIT ? number / KEY_WARPGROUPS : 0;
  using Keys = std::conditional_t<UNION, PieceKeys, NeighbouringKeys>;
  const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x % WARPGROUP / 32;
  const int own_key = warpgroup * TILE_KEYS + warp * 16 + 2 * (lane / 4);
  const int own_piece = warpgroup * (TILE_KEYS / PIECE_KEYS) + 2 * warp;
  const bool leader = lane == 0;
  const uint64_t q_tile = sm90::swizzled_tile(sm90::shared_address(shared.q), 0, 1024);
  const uint64_t key_tile = sm90::swizzled_tile(
      sm90::shared_address(shared.keys) + warpgroup * KEY_TILE_BYTES, 0, 1024);
  constexpr uint64_t Q_STEP = Q_TILE_BYTES >> 4, STAGE_STEP = (STEP_KEYS * ROW_BYTES) >> 4;
  constexpr int SECOND = HALVES == 1 ? TOKENS : 0;  // first token of the second tile
  const uint32_t keys_ready = sm90::shared_address(shared.keys_ready);
  const uint32_t keys_free = sm90::shared_address(shared.keys_free);
  int stage = 0, buffer = 0;
  uint32_t parity = 0, q_parity = 0;
  float one[64], two[64];

  while (true) {
    sm90::mbarrier_wait(sm90::shared_address(&shared.q_ready[buffer]), q_parity);
    const BlockInfo info = shared.info[buffer];
    if (info.steps == 0) return;
    const DenseMeta* meta = shared.meta[buffer];
    const uint64_t q = q_tile + (buffer * Q_TILES + tile) * Q_STEP;
#if WEIGHTS_IN_SHARED
    const float *weights_one = meta[0].weights[t], *weights_two = meta[1].weights[t];
#else
    float weights_one[32], weights_two[32];
    load_weights(weights_one, meta[tile].weights[t]);
#if !SPLIT
    load_weights(weights_two, meta[1].weights[t]);
#endif
#endif
    const Target<Out> target_one = target_of<Out>(p, meta[tile].rows[t]);
    const Target<Out> target_two = target_of<Out>(p, meta[1].rows[t]);
    int step_key = info.first_key;
    int inside_from = 0, inside_to = 0x7fffffff;
    if constexpr (!UNION) {
#pragma unroll
      for (int i = 0; i < TOKENS * Q_TILES; ++i) {
        const RowInfo& row = meta[i / TOKENS].rows[i % TOKENS];
        inside_from = max(inside_from, row.start % 2 == 0 ? row.start : 0x7fffffff);
        inside_to = min(inside_to, row.start + row.length - STEP_KEYS);
      }
    }
    float sums[8];
    const auto keys_of_step = [&] {
      if constexpr (UNION) {
        PieceKeys at;
        const int line = lane / 4, row = own_piece * PIECE_KEYS + line;
        at.keys[0] = shared.piece_keys[stage][own_piece] + line;
        at.keys[1] = shared.piece_keys[stage][own_piece + 1] + line;
        at.scale.x = shared.key_scale[stage][row];
        at.scale.y = shared.key_scale[stage][row + PIECE_KEYS];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          at.slots[i][0] = shared.piece_slots[stage][own_piece + i][t];
          at.slots[i][1] = shared.piece_slots[stage][own_piece + i][SECOND + t];
        }
        return at;
      } else {
        return NeighbouringKeys{
            step_key + own_key, step_key >= inside_from && step_key <= inside_to,
            *reinterpret_cast<const uint2*>(&shared.key_scale[stage][own_key])};
      }
    };
    const auto advance = [&] {
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
      step_key += STEP_KEYS;
    };
    const auto wait_keys = [&] { sm90::mbarrier_wait(keys_ready + 8 * stage, parity); };
    const auto finish_one = [&](const Keys& at) {
      zero(sums);
      add_heads(one, weights_one, sums);
      if (HALVES == 1) finish(sums, target_one, 0, at);
    };
    const auto finish_two = [&](const Keys& at) {
      if (HALVES == 1) zero(sums);
      add_heads(OVERLAP ? two : one, weights_two, sums);
      finish(sums, target_two, 1, at);
    };
#if SPLIT
    for (int step = 0; step < info.steps; ++step) {
      wait_keys();
      const Keys at = keys_of_step();
      start_products(one, key_tile + stage * STAGE_STEP, q);
      sm90::wgmma_wait<0>();
      sm90::pin(one);
      if (leader) sm90::mbarrier_arrive(keys_free + 8 * stage);
      zero(sums);
      add_heads(one, weights_one, sums);
      finish(sums, target_one, tile, at);
      advance();
    }
#else
    int step = 0;
#if OVERLAP == 2
    for (; step + 2 <= info.steps; step += 2) {
      wait_keys();
      const Keys at = keys_of_step();
      start_products(one, key_tile + stage * STAGE_STEP, q);
      start_products(two, key_tile + stage * STAGE_STEP, q + Q_STEP);
      sm90::wgmma_wait<1>();
      sm90::pin(one);
      finish_one(at);
      const uint32_t old_free = keys_free + 8 * stage;
      advance();
      wait_keys();
      const Keys next = keys_of_step();
      start_products(one, key_tile + stage * STAGE_STEP, q);
      sm90::wgmma_wait<1>();
      sm90::pin(two);
      if (leader) sm90::mbarrier_arrive(old_free);
      finish_two(at);
      start_products(two, key_tile + stage * STAGE_STEP, q + Q_STEP);
      sm90::wgmma_wait<1>();
      sm90::pin(one);
      finish_one(next);
      sm90::wgmma_wait<0>();
      sm90::pin(two);
      if (leader) sm90::mbarrier_arrive(keys_free + 8 * stage);
      finish_two(next);
      advance();
    }
#endif
    for (; step < info.steps; ++step) {
      wait_keys();
      const Keys at = keys_of_step();
      start_products(one, key_tile + stage * STAGE_STEP, q);
#if OVERLAP
      start_products(two, key_tile + stage * STAGE_STEP, q + Q_STEP);
      sm90::wgmma_wait<1>();
      sm90::pin(one);
      finish_one(at);
      sm90::wgmma_wait<0>();
      sm90::pin(two);
      if (leader) sm90::mbarrier_arrive(keys_free + 8 * stage);
      finish_two(at);
#else
      sm90::wgmma_wait<0>();
      sm90::pin(one);
      finish_one(at);
      start_products(one, key_tile + stage * STAGE_STEP, q + Q_STEP);
      sm90::wgmma_wait<0>();
      sm90::pin(one);
      if (leader) sm90::mbarrier_arrive(keys_free + 8 * stage);
      finish_two(at);
#endif
      advance();
    }
#endif
    if (leader) sm90::mbarrier_arrive(sm90::shared_address(&shared.q_free[buffer]));
    if (buffer == 1) q_parity ^= 1;
    buffer ^= 1;
  }
}

}  // namespace logits
