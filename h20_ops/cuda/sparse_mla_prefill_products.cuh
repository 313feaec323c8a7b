// The matrix products of one block of keys, and the exchange of probabilities between warpgroups.
#pragma once

#include "sm90_wgmma.cuh"
#include "sparse_mla_prefill_softmax.cuh"

namespace prefill {

// Logits of 64 keys over `TILES` groups of 64 dimensions, added to s (or replacing it).
template <int TILES>
__device__ __forceinline__ void score_tiles(float (&s)[32], uint64_t q_tile, uint64_t k_tile,
                                            bool first) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t step = (tile * TILE_BYTES + k * 32) >> 4;
      sm90::wgmma_m64n64k16_kk(s, q_tile + step, k_tile + step, !first || tile > 0 || k > 0);
    }
  }
}

__device__ __forceinline__ void add_own_values(float (&o)[128], const uint32_t (&p)[16],
                                               uint64_t v_tile) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sm90::wgmma_m64n256k16_rn(o, p + 4 * k, v_tile + ((k * 2048) >> 4), true);
  }
}

__device__ __forceinline__ void add_other_values(float (&o)[128], uint64_t p_tile,
                                                 uint64_t v_tile) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sm90::wgmma_m64n256k16_kn(o, p_tile + ((k * 32) >> 4), v_tile + ((k * 2048) >> 4), true);
  }
}

// Give the other warpgroup this one's probabilities and the reference they are relative to.
__device__ __forceinline__ void hand_over(uint32_t tile, float* reference, const uint32_t (&p)[16],
                                          const Row& row) {
  const int lane = threadIdx.x % 32;
  const int warp = (threadIdx.x % WARPGROUP) / 32;
  const uint32_t line = tile + (16 * warp + lane % 16) * 128;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t chunk = (2 * k + lane / 16) ^ (lane % 8);
    sm90::store_matrix_x4(line + chunk * 16, p + 4 * k);
  }
  if (lane % 4 == 0) {
    reference[16 * warp + lane / 4] = row.reference[0];
    reference[16 * warp + lane / 4 + 8] = row.reference[1];
  }
  sm90::fence_async_proxy();
}

__device__ __forceinline__ void take_reference(float (&o)[128], Row& row, const float* reference) {
  const int r = 16 * ((threadIdx.x % WARPGROUP) / 32) + (threadIdx.x % 32) / 4;
  float low, high;
  change_reference(row, 0, reference[r], low);
  change_reference(row, 1, reference[r + 8], high);
  rescale_output(o, low, high);
}

}  // namespace prefill
