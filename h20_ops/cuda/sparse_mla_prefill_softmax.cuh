// Probabilities of one block of keys, relative to a reference that only rises when it must.
#pragma once

#include "sparse_mla_prefill_layout.cuh"

namespace prefill {

struct Row {            // what a thread knows about its two rows, r and r + 8
  float reference[2];   // output, sum and probabilities are relative to it (log2 units)
  float sum[2];         // of the blocks this warpgroup scored, this thread's columns
  float top[2];         // largest logit seen by this warpgroup, before scaling
};

__device__ __forceinline__ void rescale_output(float (&o)[128], float low, float high) {
  // Rows rarely move: skip the 128 multiplications when no row of the warp did.
  if (__any_sync(0xffffffffu, low != 1.0f || high != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 128; i += 4) {
      o[i] *= low;
      o[i + 1] *= low;
      o[i + 2] *= high;
      o[i + 3] *= high;
    }
  }
}

// Move this thread's rows to a new reference and give the factors for its output.
__device__ __forceinline__ void change_reference(Row& row, int i, float reference, float& factor) {
  factor = reference == row.reference[i] ? 1.0f : sm90::exp2_fast(row.reference[i] - reference);
  row.reference[i] = reference;
  row.sum[i] *= factor;
}

// Validity of 64 keys as bits. The loads are issued long before the bits are needed.
struct KeyMask {
  uint32_t low, high;
};

struct KeyIndices {
  int low, high;  // this lane's keys of the block: lane and lane + 32
};

__device__ __forceinline__ KeyIndices load_keys(const int* indices, int first, int count) {
  const int at = first + threadIdx.x % 32;
  return {sm90::load_or(indices + at, at < count, -1),
          sm90::load_or(indices + at + 32, at + 32 < count, -1)};
}

__device__ __forceinline__ KeyMask key_mask(const KeyIndices& keys, int s_kv) {
  return {__ballot_sync(0xffffffffu, keys.low >= 0 && keys.low < s_kv),
          __ballot_sync(0xffffffffu, keys.high >= 0 && keys.high < s_kv)};
}

// Mask logits s [64 keys] of this thread's rows and give the largest of each row.
__device__ __forceinline__ void mask_and_top(float (&s)[32], float (&top)[2], Row& row,
                                             const KeyMask& mask) {
  if ((mask.low & mask.high) != 0xffffffffu) {
    const int column = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = (j < 4 ? mask.low : mask.high) >> (8 * (j % 4) + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (((bits >> (i & 1)) & 1) == 0) s[4 * j + i] = -INFINITY;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = fmaxf(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) {
      top[i] = fmaxf(top[i], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    }
    top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
    top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
    row.top[i] = fmaxf(row.top[i], top[i]);
  }
}

// Turn masked logits into probabilities, as bf16 pairs p, relative to the (possibly raised)
// reference; `factor` is what the output must be multiplied with.
__device__ __forceinline__ void softmax(const float (&s)[32], const float (&top)[2],
                                        uint32_t (&p)[16], Row& row, float scale_log2,
                                        float (&factor)[2]) {
  float offset[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float scaled = top[i] * scale_log2;
    const bool raise = scaled > row.reference[i] + RESCALE_LOG2;
    change_reference(row, i, raise ? scaled : row.reference[i], factor[i]);
    offset[i] = row.reference[i] == -INFINITY ? 0.0f : row.reference[i];
  }
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float a = sm90::exp2_fast(s[4 * j + 2 * i] * scale_log2 - offset[i]);
      const float b = sm90::exp2_fast(s[4 * j + 2 * i + 1] * scale_log2 - offset[i]);
      sum[i] += a + b;
      p[2 * j + i] = sm90::pack_bf16(a, b);
    }
  }
  row.sum[0] += sum[0];
  row.sum[1] += sum[1];
}

}  // namespace prefill
