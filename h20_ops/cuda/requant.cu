// FP4 and FP8 weights as FP8 under fp32 power-of-two scales of 128x128 blocks, in one pass.
//
// A thread block takes one of them: it reads the exponents while the values are on their way, then
// converts what has arrived. What changed is counted in global memory; nothing is read by the host.
#include "requant_codes.cuh"

using namespace requant;

namespace {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int BLOCK = 128;
constexpr int GROUPS = BLOCK / 32;
constexpr int PASS_ROWS = WARPS * 4;  // eight lanes take one row of a block
constexpr int PASSES = BLOCK / PASS_ROWS;
constexpr uint32_t ALL = 0xFFFFFFFFu;
constexpr int FP4_HEADROOM = 6;
constexpr uint32_t BYTE_NAN = 255;
constexpr uint32_t LOWEST_PLAUSIBLE = 127 - 60, HIGHEST_PLAUSIBLE = 127 + 60;
static_assert(PASS_ROWS == 32, "a pass is one group of rows of the dense form");

struct Loss {
  unsigned long long num_inexact;
  uint32_t error_bits;  // of a float that is not negative, so they order as the float does
  uint32_t spread;
  uint32_t num_bad;  // blocks with a scale that no weight should have
  uint32_t unused[3];
};
static_assert(sizeof(Loss) == 32, "one sector of memory");

struct Params {
  const uint8_t* weight;
  const void* scale;
  uint8_t* values;
  float* scales;
  Loss* loss;  // LOSS_SLOTS of them: all blocks adding to one address would wait for one another
  int32_t columns;
};

// 2^(exponent - 127), also where that is subnormal.
__device__ __forceinline__ float power(int exponent) {
  return __uint_as_float(exponent > 0 ? static_cast<uint32_t>(exponent) << 23
                                      : 0x400000u >> -exponent);
}

__device__ __forceinline__ bool is_bad_byte(uint32_t byte) {
  return byte != 0 && (byte < LOWEST_PLAUSIBLE || byte > HIGHEST_PLAUSIBLE);
}

// The exponents of one block together: largest, smallest above 0, whether one is bad.
struct Summary {
  uint32_t top, low;
  bool bad;
};

__device__ __forceinline__ Summary over_warp(Summary own) {
  return {__reduce_max_sync(ALL, own.top), __reduce_min_sync(ALL, own.low),
          __any_sync(ALL, own.bad) != 0};
}

__device__ __forceinline__ Loss* loss_of(const Params& p) {
  return p.loss + (blockIdx.x + blockIdx.y * gridDim.x) % LOSS_SLOTS;
}

// Say once per block what its scales are like.
__device__ __forceinline__ void report_scales(const Params& p, const Summary& s) {
  Loss* loss = loss_of(p);
  if (s.bad) atomicAdd(&loss->num_bad, 1u);
  const uint32_t spread = s.low <= s.top ? s.top - s.low : 0u;
  if (spread > __ldcg(&loss->spread)) atomicMax(&loss->spread, spread);
}

__device__ __forceinline__ void write_scale(const Params& p, float scale) {
  p.scales[static_cast<int64_t>(blockIdx.y) * (p.columns / BLOCK) + blockIdx.x] = scale;
}

__device__ __forceinline__ void report_change(const Params& p, Change change, float scale) {
  if (!__any_sync(ALL, change.count != 0)) return;
  const uint32_t count = __reduce_add_sync(ALL, change.count);
  const uint32_t worst = __reduce_max_sync(ALL, __float_as_uint(change.error * scale));
  if (threadIdx.x % 32 == 0) {
    Loss* loss = loss_of(p);
    atomicAdd(&loss->num_inexact, static_cast<unsigned long long>(count));
    if (worst > __ldcg(&loss->error_bits)) atomicMax(&loss->error_bits, worst);
  }
}

}  // namespace

// Packed e2m1 (rows, columns / 2) and exponent bytes (rows, columns / 32).
extern "C" __global__ void __launch_bounds__(THREADS, FP4_CTAS)
    requant_fp4(const __grid_constant__ Params p) {
  __shared__ uint32_t exponents[BLOCK];  // four bytes for a row
  __shared__ uint32_t summaries[BLOCK / 32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int part = lane % 8;  // 16 values of a row
  const int first_row_of_lane = warp * 4 + lane / 8;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * BLOCK;

  uint2 packed[PASSES];
  const uint8_t* source = p.weight + (first_row + first_row_of_lane) * (p.columns / 2) +
                          blockIdx.x * (BLOCK / 2) + part * 8;
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    packed[pass] = __ldg(reinterpret_cast<const uint2*>(source));
    source += PASS_ROWS * (p.columns / 2);
  }

  if (threadIdx.x < BLOCK) {  // whole warps
    const uint8_t* at = static_cast<const uint8_t*>(p.scale) +
                        (first_row + threadIdx.x) * (p.columns / 32) + blockIdx.x * GROUPS;
    const uint32_t word = __ldg(reinterpret_cast<const uint32_t*>(at));
    exponents[threadIdx.x] = word;
    Summary own = {0u, BYTE_NAN, false};
#pragma unroll
    for (int g = 0; g < GROUPS; ++g) {
      const uint32_t byte = word >> (8 * g) & 0xFFu;
      own.top = max(own.top, byte);
      own.low = min(own.low, byte == 0 ? BYTE_NAN : byte);
      own.bad |= is_bad_byte(byte);
    }
    own = over_warp(own);
    if (lane == 0) {
      summaries[warp] = own.top | own.low << 8 | static_cast<uint32_t>(own.bad) << 16;
    }
  }
  __syncthreads();

  Summary all = {0u, BYTE_NAN, false};
#pragma unroll
  for (int w = 0; w < BLOCK / 32; ++w) {
    const uint32_t one = summaries[w];
    all.top = max(all.top, one & 0xFFu);
    all.low = min(all.low, one >> 8 & 0xFFu);
    all.bad |= (one >> 16) != 0;
  }
  const int top = static_cast<int>(all.top);
  const float scale = all.top == BYTE_NAN ? __uint_as_float(0x7FC00000u) : power(top - FP4_HEADROOM);
  if (threadIdx.x == 0) {
    write_scale(p, scale);
    report_scales(p, all);
  }
  bool is_far = false;
  uint8_t* target = p.values + (first_row + first_row_of_lane) * p.columns + blockIdx.x * BLOCK +
                    part * 16;
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const uint32_t word = exponents[pass * PASS_ROWS + first_row_of_lane];
    const int places = top - static_cast<int>(word >> (part / 2 * 8) & 0xFFu);
    const Magnitudes table = magnitudes(places);
    const uint2 codes = packed[pass];
    is_far |= places > FP4_LAST_EXACT;
    *reinterpret_cast<uint4*>(target) =
        make_uint4(expand4(codes.x, table), expand4(codes.x >> 16, table), expand4(codes.y, table),
                   expand4(codes.y >> 16, table));
    target += PASS_ROWS * p.columns;
  }
  if (!__any_sync(ALL, is_far)) return;
  Change change;
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const uint32_t word = exponents[pass * PASS_ROWS + first_row_of_lane];
    const int places = top - static_cast<int>(word >> (part / 2 * 8) & 0xFFu);
    if (places <= FP4_LAST_EXACT) continue;
    change.add(fp4_change(packed[pass].x, places));
    change.add(fp4_change(packed[pass].y, places));
  }
  report_change(p, change, scale);
}

// e4m3 (rows, columns) and, per 32x32 values, an fp32 power of two or an exponent byte.
template <bool BYTES>
__device__ __forceinline__ void dense(const Params& p) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int part = lane % 8;  // 16 values of a row
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * BLOCK;

  const int64_t start = (first_row + warp * 4 + lane / 8) * p.columns + blockIdx.x * BLOCK + part * 16;
  const int pass_bytes = PASS_ROWS * p.columns;

  uint4 old[PASSES];
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    old[pass] = __ldg(reinterpret_cast<const uint4*>(p.weight + start + pass * pass_bytes));
  }

  // Every warp looks at all sixteen exponents itself; lanes 16 .. 31 at the same once more.
  const int64_t group_row = first_row / 32 + lane / GROUPS % GROUPS;
  const int64_t scale_at = group_row * (p.columns / 32) + blockIdx.x * GROUPS + lane % GROUPS;
  int exponent;
  bool bad;
  if (BYTES) {
    exponent = __ldg(static_cast<const uint8_t*>(p.scale) + scale_at);
    bad = is_bad_byte(exponent);
  } else {
    const int bits = __ldg(static_cast<const int*>(p.scale) + scale_at);
    exponent = bits >> 23 & 0xFF;
    const bool is_normal = bits > 0 && (bits & 0x7FFFFF) == 0 && exponent > 0 && exponent < 255;
    bad = !is_normal && bits != 0x400000;
    if (bad) exponent = BYTE_NAN;
  }
  const auto value = static_cast<uint32_t>(exponent);
  const Summary all = over_warp({value, value == 0 ? BYTE_NAN : value, bad});
  const int top = static_cast<int>(all.top);
  const float scale = all.top == BYTE_NAN ? __uint_as_float(0x7FC00000u) : power(top);
  if (threadIdx.x == 0) {
    write_scale(p, scale);
    report_scales(p, all);
  }

  Change change;
  __half2 worst = __float2half2_rn(0.0f);
  __half2 count = worst;
#pragma unroll
  for (int pass = 0; pass < PASSES; ++pass) {
    const int places = top - __shfl_sync(ALL, exponent, pass * GROUPS + part / 2);
    uint32_t words[4] = {old[pass].x, old[pass].y, old[pass].z, old[pass].w};
    if (places > FP8_LAST_IN_HALF) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Shifted moved = shift4_far(words[i], places);
        words[i] = moved.codes;
        change.add(moved.change);
      }
    } else if (places > 0) {
#pragma unroll
      for (int i = 0; i < 4; ++i) words[i] = shift4_near(words[i], places, worst, count);
    }
    *reinterpret_cast<uint4*>(p.values + start + pass * pass_bytes) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  change.add({static_cast<uint32_t>(__low2float(count) + __high2float(count)),
              fmaxf(__low2float(worst), __high2float(worst))});
  report_change(p, change, scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, FP8_CTAS)
    requant_fp8(const __grid_constant__ Params p) {
  dense<false>(p);
}

extern "C" __global__ void __launch_bounds__(THREADS, FP8_CTAS)
    requant_fp8_bytes(const __grid_constant__ Params p) {
  dense<true>(p);
}
