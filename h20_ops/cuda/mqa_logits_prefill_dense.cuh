// Dense logits, and those of unions of candidates: a block walks over blocks of rows (two tiles of B,
// kept in shared memory) and keys, 64 keys a warpgroup and step. Three warpgroups take turns: while one
// sums heads, the products of the others run.
#pragma once

#include <type_traits>

#include "mqa_logits_prefill_feed.cuh"

namespace logits {

// Where a thread's token writes. What else is known of its row stays in shared memory: inside the ranges
// of all tokens of a block it is not needed.
template <typename Out>
struct Target {
  Out* key_0;  // where key 0 would go; of a union, column 0
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
  uint2 scale;
  uint32_t slots[2][2];  // of the pieces, for the tokens of the two tiles
};

template <typename Out>
__device__ __forceinline__ void store_slot(const Target<Out>& target, uint32_t line, uint32_t slot,
                                           float value) {
  if (slot == NO_SLOT) return;
  const uint32_t last = (slot >> SLOT_BITS) - 1;  // of a piece's keys that are there
  store_one(target.key_0 + ((slot & ((1 << SLOT_BITS) - 1)) * PIECE_KEYS + line),
            line <= last ? value : -INFINITY);
}

// Add a tile's 32 heads to the four classes of two keys.
__device__ __forceinline__ void add_heads(const float (&products)[64], const float (&weights)[32],
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
  const uint32_t line = threadIdx.x % 32 / 4;
  store_slot(target, line, at.slots[0][tile], a);
  store_slot(target, line, at.slots[1][tile], b);
}

// Multiply 64 keys with a tile of B, and wait for it: other warpgroups keep the tensor cores busy.
__device__ __forceinline__ void multiply(float (&products)[64], uint64_t keys, uint64_t q) {
  sm90::pin(products);
  sm90::wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sm90::wgmma_m64n128k32_e4m3(products, keys + 2 * k, q + 2 * k, k > 0);
  }
  sm90::wgmma_commit();
  sm90::wgmma_wait<0>();
  sm90::pin(products);
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

template <typename Out, bool UNION>
__device__ __forceinline__ Target<Out> target_of(const Params& p, const RowInfo& row) {
  return {static_cast<Out*>(p.out) + row.offset - (UNION ? 0 : row.start), row.scale, &row};
}

template <int HALVES, typename Out, bool UNION>
__device__ __forceinline__ void compute_dense(const Params& p, DenseShared& shared, int warpgroup) {
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
  float products[64];

  while (true) {
    sm90::mbarrier_wait(sm90::shared_address(&shared.q_ready[buffer]), q_parity);
    const BlockInfo info = shared.info[buffer];
    if (info.steps == 0) return;
    const DenseMeta* meta = shared.meta[buffer];
    const uint64_t q = q_tile + buffer * Q_TILES * Q_STEP;
    float weights_one[32], weights_two[32];
    load_weights(weights_one, meta[0].weights[t]);
    load_weights(weights_two, meta[1].weights[t]);
    const Target<Out> target_one = target_of<Out, UNION>(p, meta[0].rows[t]);
    const Target<Out> target_two = target_of<Out, UNION>(p, meta[1].rows[t]);
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
        const int row = own_piece * PIECE_KEYS + lane / 4;
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
    for (int step = 0; step < info.steps; ++step) {
      sm90::mbarrier_wait(keys_ready + 8 * stage, parity);
      const Keys at = keys_of_step();
      multiply(products, key_tile + stage * STAGE_STEP, q);
      zero(sums);
      add_heads(products, weights_one, sums);
      if (HALVES == 1) finish(sums, target_one, 0, at);
      multiply(products, key_tile + stage * STAGE_STEP, q + Q_STEP);
      if (leader) sm90::mbarrier_arrive(keys_free + 8 * stage);
      if (HALVES == 1) zero(sums);
      add_heads(products, weights_two, sums);
      finish(sums, target_two, 1, at);
      if (++stage == STAGES) {
        stage = 0;
        parity ^= 1;
      }
      step_key += STEP_KEYS;
    }
    if (leader) sm90::mbarrier_arrive(sm90::shared_address(&shared.q_free[buffer]));
    if (buffer == 1) q_parity ^= 1;
    buffer ^= 1;
  }
}

}  // namespace logits
