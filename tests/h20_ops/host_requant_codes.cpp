// Build requant_codes.cuh as host code and run it over many bytes at once.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstring>

static uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    uint32_t result = 0;
    for (int i = 0; i < 4; ++i) {
        result |= static_cast<uint32_t>(bytes >> (8 * (selector >> (4 * i) & 7u)) & 0xFFu) << (8 * i);
    }
    return result;
}

// In double the sum is exact for all values that occur, so only the conversion rounds.
static __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
    const auto one = [](__half x, __half y, __half z) {
        return __double2half(static_cast<double>(__half2float(x)) * __half2float(y) + __half2float(z));
    };
    return __halves2half2(one(__low2half(a), __low2half(b), __low2half(c)),
                          one(__high2half(a), __high2half(b), __high2half(c)));
}

#define __noinline__
#include "requant_codes.cuh"

// Each of `num` words of eight e2m1 codes gives eight bytes, a count and an error.
extern "C" void run_fp4(const uint32_t* codes, int places, long num, uint32_t* bytes, uint32_t* counts,
                        float* errors) {
    const requant::Magnitudes table = requant::magnitudes(places);
    for (long i = 0; i < num; ++i) {
        bytes[2 * i] = requant::expand4(codes[i], table);
        bytes[2 * i + 1] = requant::expand4(codes[i] >> 16, table);
        requant::Change change;
        if (places > requant::FP4_LAST_EXACT) change = requant::fp4_change(codes[i], places);
        counts[i] = change.count;
        errors[i] = change.error;
    }
}

// Each of `num` words of four e4m3 codes gives four, a count and an error.
extern "C" void run_fp8(const uint32_t* codes, int places, long num, uint32_t* bytes, uint32_t* counts,
                        float* errors) {
    for (long i = 0; i < num; ++i) {
        requant::Shifted moved;
        if (places > requant::FP8_LAST_IN_HALF) {
            moved = requant::shift4_far(codes[i], places);
        } else {
            __half2 worst = __float2half2_rn(0.0f), count = worst;
            moved.codes = requant::shift4_near(codes[i], places, worst, count);
            moved.change = {static_cast<uint32_t>(__low2float(count) + __high2float(count)),
                            std::fmax(__low2float(worst), __high2float(worst))};
        }
        bytes[i] = moved.codes;
        counts[i] = moved.change.count;
        errors[i] = moved.change.error;
    }
}
