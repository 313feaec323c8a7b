// The end of a row: join both warpgroups' sums, normalise, write.
#pragma once

#include "sparse_mla_prefill_softmax.cuh"

namespace prefill {

// Normalise and write this warpgroup's half of the output, and from the left one the statistics.
// `stage` is a tile nobody reads at this point; each warp passes its 16 rows through its part of it,
// 64 columns at a time, so that eight lanes write 128 contiguous bytes of a row.
template <int SIDE>
__device__ __forceinline__ void finish(const Params& p, Shared& shared, const float (&o)[128],
                                       Row& row, const Work& work, uint32_t stage, int buffer) {
  const int lane = threadIdx.x % 32;
  const int first = 16 * ((threadIdx.x % WARPGROUP) / 32);
  const int r = first + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row.sum[i] += __shfl_xor_sync(0xffffffffu, row.sum[i], 1);
    row.sum[i] += __shfl_xor_sync(0xffffffffu, row.sum[i], 2);
    if (lane % 4 == 0) {
      shared.sum[buffer][SIDE][r + 8 * i] = row.sum[i];
      shared.top[buffer][SIDE][r + 8 * i] = row.top[i];
    }
  }
  sm90::named_sync<TOTALS_READY, CONSUMERS>();
  const int64_t line = static_cast<int64_t>(work.query) * p.h_q + work.head_group * HEADS;
  const int rows = p.h_q - work.head_group * HEADS;  // heads from here on that exist
  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = r + 8 * i;
    const float sum = shared.sum[buffer][0][at] + shared.sum[buffer][1][at];
    float total = sum;
    if (p.sink != nullptr && at < rows) {
      const float sink = __ldg(p.sink + work.head_group * HEADS + at);
      total += sm90::exp2_fast(sink * sm90::LOG2E - row.reference[i]);
    }
    inverse[i] = sum > 0.0f ? 1.0f / total : 0.0f;
    if (SIDE == 0 && lane % 4 == 0 && at < rows) {
      const float top = fmaxf(shared.top[buffer][0][at], shared.top[buffer][1][at]);
      p.max_logits[line + at] = top * p.sm_scale;
      p.lse[line + at] = sum > 0.0f ? row.reference[i] * sm90::LN2 + logf(sum) : INFINITY;
    }
  }
  const uint32_t put = stage + (first + lane % 16) * 128;
  const uint32_t get = stage + (first + lane / 8) * 128;
  bf16* target = p.out + (line + first + lane / 8) * DIM + SIDE * (DIM / 2) + (lane % 8) * 8;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    __syncwarp();  // the previous part has been read
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 32 * part + 8 * k + 2 * i;
        w[i] = sm90::pack_bf16(o[at] * inverse[i % 2], o[at + 1] * inverse[i % 2]);
      }
      sm90::store_matrix_x4(put + (((2 * k + lane / 16) ^ (lane % 8)) << 4), w);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * i + lane / 8;
      const uint4 piece = sm90::load_shared16(get + i * 512 + (((lane % 8) ^ (at % 8)) << 4));
      if (first + at < rows) {
        *reinterpret_cast<uint4*>(target + i * 4 * DIM + part * 64) = piece;
      }
    }
  }
}

}  // namespace prefill
