// FP4 e2m1 codes to FP8 e4m3 bytes, four ue8m0 groups of 32 under one power of two.
//
// A row of 128 values is stored as 16 words of eight codes (channel 8 w + i in bits 4 i .. 4 i + 3 of
// word w) and one word of four exponents (channels 32 g .. 32 g + 31 in byte g, worth 2^(byte - 127)).
// Code times 2^shift is an e4m3 value for shifts -8 .. 6, so a row whose exponents span at most 14
// becomes e4m3 bytes times one power of two exactly. Where they span more, values of the smaller groups
// are rounded to nearest even in steps of 2^-9, while the row's largest value is 32 to 384: the error is
// at most 2^-15 of the row's largest value.
#pragma once

#include <cstdint>

namespace fp4 {

constexpr int LARGEST_SHIFT = 6;    // 6 * 2^6 = 384 of at most 448
constexpr int SMALLEST_SHIFT = -13;  // from here on every code rounds to zero
constexpr uint32_t NAN_EXPONENT = 255;
constexpr uint32_t NAN_BYTES = 0x7F7F7F7F;

// e4m3 bytes of the magnitudes 0, 0.5, 1, 1.5 (low) and 2, 3, 4, 6 (high) times a power of two.
struct Magnitudes {
  uint32_t low, high;
};

// The magnitudes times 2^shift, for shifts SMALLEST_SHIFT .. LARGEST_SHIFT.
__device__ __forceinline__ Magnitudes magnitudes(int shift) {
  if (shift >= -5) {  // all but zero are normal numbers: the exponent field counts from bit 3
    return {0x3C383000u + static_cast<uint32_t>(shift) * 0x08080800u,
            0x4C484440u + static_cast<uint32_t>(shift) * 0x08080808u};
  }
  switch (shift) {
    case -6: return {0x0C080400u, 0x1C181410u};
    case -7: return {0x06040200u, 0x14100C08u};
    case -8: return {0x03020100u, 0x0C080604u};
    case -9: return {0x02010000u, 0x06040302u};
    case -10: return {0x01000000u, 0x03020201u};
    case -11: return {0u, 0x02010100u};
    case -12: return {0u, 0x01000000u};
    default: return {0u, 0u};
  }
}

// Expand eight codes: channels 0 .. 3 in x, 4 .. 7 in y, the lowest channel in the lowest byte.
__device__ __forceinline__ uint2 expand8(uint32_t codes, Magnitudes values) {
  const uint32_t selectors = codes & 0x77777777u;
  const uint32_t even_signs = codes << 4;  // bit 7 of each byte is now an even channel's sign
  const uint32_t signs_x = __byte_perm(even_signs, codes, 0x5140);
  const uint32_t signs_y = __byte_perm(even_signs, codes, 0x7362);
  const uint32_t x = __byte_perm(values.low, values.high, selectors);
  const uint32_t y = __byte_perm(values.low, values.high, selectors >> 16);
  return {x | (signs_x & 0x80808080u), y | (signs_y & 0x80808080u)};
}

// Expand a group's 32 codes (16 bytes) to 32 bytes; a NaN exponent makes every byte NaN.
__device__ __forceinline__ void expand32(uint4 codes, uint32_t exponent, int shift, uint4& first,
                                         uint4& second) {
  if (exponent == NAN_EXPONENT) {
    first = second = make_uint4(NAN_BYTES, NAN_BYTES, NAN_BYTES, NAN_BYTES);
    return;
  }
  const Magnitudes values = magnitudes(shift);
  const uint2 a = expand8(codes.x, values), b = expand8(codes.y, values);
  const uint2 c = expand8(codes.z, values), d = expand8(codes.w, values);
  first = make_uint4(a.x, a.y, b.x, b.y);
  second = make_uint4(c.x, c.y, d.x, d.y);
}

// What a group asks of its row's power of two: its exponent, or -1 if it holds zeros or NaN only.
__device__ __forceinline__ int group_exponent(uint4 codes, uint32_t exponent) {
  const uint32_t any = (codes.x | codes.y | codes.z | codes.w) & 0x77777777u;
  return any == 0 || exponent == NAN_EXPONENT ? -1 : static_cast<int>(exponent);
}

// The shift of a group in a row whose largest group_exponent is `largest`.
__device__ __forceinline__ int group_shift(uint32_t exponent, int largest) {
  const int shift = static_cast<int>(exponent) - largest + LARGEST_SHIFT;
  return min(max(shift, SMALLEST_SHIFT), LARGEST_SHIFT);
}

// The row's power of two: value = byte * 2^row_exponent(largest); 0 for a row of zeros.
__device__ __forceinline__ int row_exponent(int largest) {
  return largest < 0 ? 0 : largest - 127 - LARGEST_SHIFT;
}

}  // namespace fp4
