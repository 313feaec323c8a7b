// e2m1 and e4m3 codes under a scale that lies some binary places above their own, as e4m3 codes.
//
// A value v under an old scale is v * 2^-places under the new one (for e2m1 times 2^6 besides, the
// headroom that h20_ops/requant_tables.py explains). Rounding is to nearest, ties to even.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace requant {

constexpr int FP4_LAST_EXACT = 14;
constexpr int FP4_PLACES = 20;  // from the last of them on all values are zero
constexpr int FP8_LAST_IN_HALF = 15;  // up to here every product is exact in fp16

// What a thread's values lost: how many changed, and the largest change in units of the new scale.
struct Change {
  uint32_t count = 0;
  float error = 0.0f;

  __device__ __forceinline__ void add(Change other) {
    count += other.count;
    error = fmaxf(error, other.error);
  }
};

__device__ __forceinline__ float decode(uint32_t byte) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(byte), __NV_E4M3)));
}

__device__ __forceinline__ uint32_t encode(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// e4m3 codes of the eight e2m1 magnitudes: 0, 0.5, 1, 1.5 in `low`, 2, 3, 4, 6 in `high`.
struct Magnitudes {
  uint32_t low, high;
};

// Twice the magnitude of an e2m1 code.
__device__ constexpr int doubled(int code) {
  return code < 5 ? code : code == 5 ? 6 : code == 6 ? 8 : 12;
}

// The e4m3 code of a multiple of 2^-9 of at most four significant bits.
constexpr uint32_t code_of_multiple(uint32_t value) {
  uint32_t exponent = 0;
  for (; value >= 16; value /= 2) ++exponent;
  return exponent * 8 + value;
}

struct MagnitudeTable {
  Magnitudes at[FP4_PLACES];
};

constexpr MagnitudeTable make_magnitudes() {
  MagnitudeTable table{};
  for (int places = 0; places < FP4_PLACES; ++places) {
    uint32_t words[2] = {0, 0};
    for (int code = 0; code < 8; ++code) {
      const uint32_t value = doubled(code) << (FP4_LAST_EXACT - (places < FP4_LAST_EXACT ? places : FP4_LAST_EXACT));
      const int down = places > FP4_LAST_EXACT ? places - FP4_LAST_EXACT : 0;
      const uint32_t whole = value >> down, rest = value - (whole << down), half = (1u << down) / 2;
      const bool up = down > 0 && (rest > half || (rest == half && whole % 2 == 1));
      words[code / 4] |= code_of_multiple(whole + up) << (code % 4 * 8);
    }
    table.at[places] = {words[0], words[1]};
  }
  return table;
}

__device__ const MagnitudeTable MAGNITUDES = make_magnitudes();

__device__ __forceinline__ Magnitudes magnitudes(int places) {
  return MAGNITUDES.at[places < FP4_PLACES ? places : FP4_PLACES - 1];
}

// Four e4m3 bytes of the four e2m1 codes in the low half of `codes`, first code in the low byte.
// A byte permutation looks the magnitudes up; where a code's sign bit is set, the same instruction
// spreads the top bit of the chosen byte instead, which gives 0xFF among 0x80.
__device__ __forceinline__ uint32_t expand4(uint32_t codes, Magnitudes table) {
  const uint32_t magnitude = __byte_perm(table.low, table.high, codes & 0x7777u);
#ifdef __CUDA_ARCH__
  uint32_t spread;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(spread) : "r"(0x80808080u), "r"(codes));
#else
  uint32_t spread = 0;
  for (int i = 0; i < 4; ++i) spread |= (codes >> (4 * i + 3) & 1u ? 0xFFu : 0x80u) << (8 * i);
#endif
  return magnitude | ((spread << 1) & 0x80808080u);
}

// Add up what eight e2m1 codes lost; for places beyond FP4_LAST_EXACT only.
__device__ __noinline__ Change fp4_change(uint32_t codes, int places) {
  uint32_t present = 0;
  uint32_t inexact = 0;
  Change change;
  for (int i = 0; i < 8; ++i) present |= 1u << (codes >> (4 * i) & 7u);
  for (int code = 1; code < 8; ++code) {
    const float wanted = ldexpf(static_cast<float>(doubled(code)), 5 - places);
    const float error = fabsf(decode(encode(wanted)) - wanted);
    const bool lost = error != 0.0f || places > 2 * FP4_LAST_EXACT;  // far away all become zero
    inexact |= static_cast<uint32_t>(lost) << code;
    if (lost && (present >> code & 1u)) change.error = fmaxf(change.error, error);
  }
  for (int i = 0; i < 8; ++i) change.count += inexact >> (codes >> (4 * i) & 7u) & 1u;
  return change;
}

// NaN codes stay as they are.
__device__ __forceinline__ uint32_t keep_nan(uint32_t old, uint32_t codes) {
  const uint32_t marks = ((old & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
  if (marks == 0) return codes;
  const uint32_t bytes = (marks >> 7) * 0xFFu;
  return (codes & ~bytes) | (old & bytes);
}

// The halves 2^-8 * value of the even or the odd bytes of four magnitudes: exponent and mantissa of an
// e4m3 code, put into a half's, are too small by 2^8.
__device__ __forceinline__ __half2 even_halves(uint32_t magnitudes) {
  const uint32_t bits = (magnitudes & 0x00FF00FFu) << 7;
  return *reinterpret_cast<const __half2*>(&bits);
}

__device__ __forceinline__ __half2 odd_halves(uint32_t magnitudes) {
  const uint32_t bits = (magnitudes & 0xFF00FF00u) >> 1;
  return *reinterpret_cast<const __half2*>(&bits);
}

// Two values below 2^-6 after the move, as codes in the low bits of either half. Added to 2, whose last
// place in a half is 2^-9, a value is rounded to the multiple of 2^-9 that its code counts.
__device__ __forceinline__ uint32_t small2(__half2 halves, __half2 factor, __half2& worst,
                                           __half2& count) {
  const __half2 two = __float2half2_rn(2.0f);
  const __half2 rounded = __hfma2(halves, factor, two);
  const __half2 error = __habs2(__hfma2(__hneg2(halves), factor, __hsub2(rounded, two)));
  worst = __hmax2(worst, error);
  count = __hadd2(count, __hgt2(error, __float2half2_rn(0.0f)));
  return *reinterpret_cast<const uint32_t*>(&rounded) & 0x000F000Fu;
}

// Four e4m3 codes `places` above where they were, 0 <= places <= FP8_LAST_IN_HALF. Codes that stay
// normal lose eight for each place. `worst` and `count` are running values per half.
__device__ __forceinline__ uint32_t shift4_near(uint32_t old, int places, __half2& worst,
                                                __half2& count) {
  const __half2 factor = __half2half2(
      __ushort_as_half(static_cast<unsigned short>((15 + 8 - places) << 10)));  // 2^(8 - places)
  const uint32_t magnitudes = old & 0x7F7F7F7Fu;
  const uint32_t nan = (((magnitudes + 0x01010101u) & 0x80808080u) >> 7) * 0x7Fu;
  const uint32_t first_normal = (places + 1) * 0x08080808u;
  const uint32_t normal = ((((magnitudes | 0x80808080u) - first_normal) & 0x80808080u) >> 7) * 0xFFu;
  const uint32_t small = magnitudes & ~(normal | nan);
  const uint32_t even = small2(even_halves(small), factor, worst, count);
  const uint32_t odd = small2(odd_halves(small), factor, worst, count);
  const uint32_t moved = (magnitudes & normal) - (places * 0x08080808u & normal);
  return (old & 0x80808080u) | moved | nan | even | odd << 8;
}

struct Shifted {
  uint32_t codes = 0;
  Change change;
};

// The same for any number of places.
__device__ __noinline__ Shifted shift4_far(uint32_t old, int places) {
  Shifted result;
  for (int i = 0; i < 4; ++i) {
    const uint32_t byte = old >> (8 * i) & 0xFFu;
    const float before = decode(byte);
    const float wanted = ldexpf(before, -places);
    const uint32_t made = encode(wanted);
    result.codes |= made << (8 * i);
    if ((byte & 0x7Fu) == 0x7Fu) continue;
    const float error = fabsf(decode(made) - wanted);
    // A value too small even for fp32 is lost, though no error is left to be seen.
    if (error != 0.0f || (before != 0.0f && (made & 0x7Fu) == 0)) ++result.change.count;
    result.change.error = fmaxf(result.change.error, error);
  }
  result.codes = keep_nan(old, result.codes);
  return result;
}

}  // namespace requant
