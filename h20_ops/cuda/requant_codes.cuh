// e2m1 and e4m3 codes under a scale that lies some binary places above their own, as e4m3 codes.
//
// A value v under an old scale is v * 2^-places under the new one (for e2m1 times 2^6 besides, the
// headroom that h20_ops/requant_tables.py explains). Rounding is to nearest, ties to even.
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>

namespace requant {

constexpr int FP4_LAST_NORMAL = 11;  // up to here 0.5 * 2^6 * 2^-places is a normal e4m3 number
constexpr int FP4_LAST_EXACT = 14;
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
__device__ __forceinline__ int doubled(int code) {
  return code < 5 ? code : code == 5 ? 6 : code == 6 ? 8 : 12;
}

__device__ __noinline__ Magnitudes far_magnitudes(int places) {
  uint32_t words[2] = {0, 0};
  for (int code = 1; code < 8; ++code) {
    words[code / 4] |= encode(ldexpf(static_cast<float>(doubled(code)), 5 - places)) << (code % 4 * 8);
  }
  return {words[0], words[1]};
}

__device__ __forceinline__ Magnitudes magnitudes(int places) {
  if (places > FP4_LAST_NORMAL) return far_magnitudes(places);
  return {0x6C686000u - places * 0x08080800u, 0x7C787470u - places * 0x08080808u};
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

// Four e4m3 codes `places` above where they were; 1 <= places <= FP8_LAST_IN_HALF. `worst` and
// `count` are running values per half.
__device__ __forceinline__ uint32_t shift4_near(uint32_t old, __half2 factor, __half2& worst,
                                                __half2& count) {
  uint32_t codes = 0;
  const __half2 zero = __float2half2_rn(0.0f);
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const auto two = static_cast<__nv_fp8x2_storage_t>(old >> (16 * pair));
    const __half2 wanted = __hmul2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)), factor);
    const __nv_fp8x2_storage_t made =
        __nv_cvt_halfraw2_to_fp8x2(static_cast<__half2_raw>(wanted), __NV_SATFINITE, __NV_E4M3);
    const __half2 error =
        __habs2(__hsub2(__half2(__nv_cvt_fp8x2_to_halfraw2(made, __NV_E4M3)), wanted));
    worst = __hmax2(worst, error);  // NaN is neither larger nor above zero
    count = __hadd2(count, __hgt2(error, zero));
    codes |= static_cast<uint32_t>(made) << (16 * pair);
  }
  return keep_nan(old, codes);
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
