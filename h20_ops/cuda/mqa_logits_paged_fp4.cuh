// FP4 vectors (128 e2m1 codes, four ue8m0 exponents) as e4m3 bytes under one power of two.
//
// A group of 32 codes whose exponent lies D below the vector's largest is read through a table of the
// eight magnitudes times 2^(6 - D). All of them are e4m3 numbers up to D = 14, so vectors whose
// exponents span no more are exact; beyond, they round to the nearest multiple of 2^-9 (ties to even),
// an error of at most 2^-10 where the largest group's own values go up to 384. From D = 19 on they are 0.
// Signs come out inverted, in keys and queries alike: their products are right.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "mqa_logits_paged_memory.cuh"

namespace paged {

constexpr int TABLES = 20;          // for D = 0 .. 19
constexpr int TABLE_BYTES = 8;
constexpr int LARGEST_SHIFT = 6;    // 6 * 2^6 = 384 is the largest e4m3 value used

// The table of D: magnitudes 0, 0.5, 1, 1.5 and 2, 3, 4, 6.
__device__ __forceinline__ uint2 magnitude_table(int below) {
  const float unit = exp2f(static_cast<float>(LARGEST_SHIFT - below));
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int code = 0; code < 8; ++code) {
    const float magnitude = code < 4 ? 0.5f * code : (code == 7 ? 6.0f : code - 2.0f);
    const uint32_t byte = __nv_cvt_float_to_fp8(magnitude * unit, __NV_SATFINITE, __NV_E4M3);
    words[code >> 2] |= byte << (8 * (code & 3));
  }
  return make_uint2(words[0], words[1]);
}

constexpr uint32_t MARK = 0x40404040u;

// Eight codes to the negatives of their values, channels 0 .. 3 in `low` and 4 .. 7 in `high`.
//
// A permutation's selectors are the codes themselves: three bits pick a magnitude. With the fourth
// bit set, a selector yields its byte's sign bit eight times; that turns a byte of `mark` into 0 and
// leaves 0x40 where the code is positive.
__device__ __forceinline__ void expand8(uint32_t codes, uint2 table, uint32_t mark, uint32_t& low,
                                        uint32_t& high) {
  const uint32_t magnitudes = codes & 0x77777777u;
  low = permute(mark, mark, codes) * 2 + permute(table.x, table.y, magnitudes);
  high = permute(mark, mark, codes >> 16) * 2 + permute(table.x, table.y, magnitudes >> 16);
}



// Of four exponents: the largest, and how far the others are below it, times TABLE_BYTES, as bytes.
__device__ __forceinline__ uint32_t largest_exponent(uint32_t exponents, uint32_t& table_bytes) {
  const uint32_t even = exponents & 0x00FF00FFu;
  const uint32_t odd = (exponents >> 8) & 0x00FF00FFu;
  const uint32_t pair = __vmaxu2(even, odd);
  const uint32_t largest = __vmaxu2(pair, permute(pair, 0, 0x1032));  // in both halves
  constexpr uint32_t LAST = (TABLES - 1) * 0x00010001u;
  const uint32_t below_even = __vminu2(largest - even, LAST);
  const uint32_t below_odd = __vminu2(largest - odd, LAST);
  table_bytes = (below_even + below_odd * 256u) * TABLE_BYTES;
  return largest & 0xFFFF;
}

// Four lanes hold four bytes each; lane t of the quad gets byte t of all four, in their order.
struct Transposition {
  uint32_t far_bytes, near_bytes;

  __device__ __forceinline__ explicit Transposition(int lane)
      : far_bytes((lane & 2) ? 0x3276 : 0x5410), near_bytes((lane & 1) ? 0x3715 : 0x6240) {}

  __device__ __forceinline__ uint32_t operator()(uint32_t word) const {
    const uint32_t half = permute(word, __shfl_xor_sync(0xffffffffu, word, 2), far_bytes);
    return permute(half, __shfl_xor_sync(0xffffffffu, half, 1), near_bytes);
  }
};

// 2^(exponent - 254) in two factors, for an exponent that is the sum of two bytes. Below 2^-252, where
// no result survives, it stays at that.
__device__ __forceinline__ float scale_by(float value, int exponents) {
  const int power = max(exponents - 254, -252);
  const int half = power >> 1;
  value *= __int_as_float((half + 127) << 23);
  return value * __int_as_float((power - half + 127) << 23);
}

}  // namespace paged
