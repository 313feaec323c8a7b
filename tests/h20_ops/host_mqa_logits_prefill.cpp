// Build mqa_logits_prefill.cu as host code: a block's threads are fibres that run in turn and change at
// every barrier and shuffle. What the source asks of single instructions is written out here; this
// stands in for fp8_wgmma.cuh, sm90.cuh and mqa_logits_prefill_memory.cuh.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <vector_functions.h>

#include "host_fibres.h"

alignas(1024) uint8_t raw[1 << 18];

static uint32_t __ballot_sync(unsigned mask, bool v) {
    uint32_t bits = static_cast<uint32_t>(v) << (threadIdx.x & 31);
    for (int by = 1; by < 32; by *= 2) bits |= __shfl_xor_sync(mask, bits, by);
    return bits;
}
static int __popc(uint32_t v) { return __builtin_popcount(v); }
static int __ffs(uint32_t v) { return __builtin_ffs(v); }
static void atomicOr(uint32_t* at, uint32_t v) { *at |= v; }
static float __uint_as_float(uint32_t v) { float f; std::memcpy(&f, &v, 4); return f; }
static uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) r |= static_cast<uint32_t>((bytes >> (8 * (selector >> (4 * i) & 7))) & 0xFF) << (8 * i);
    return r;
}
static void __trap() { std::abort(); }
static void aligned(const void* at, int size) { if (reinterpret_cast<uint64_t>(at) % size) std::abort(); }

static float e4m3(uint8_t byte) {
    const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
    if ((byte & 0x7F) == 0x7F) return NAN;
    const double v = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return static_cast<float>(byte & 0x80 ? -v : v);
}
static float values[256];
static uint8_t tile_byte(uint64_t tile, int row, int k) {
    uint32_t at = ((tile & 0x3FFF) << 4) + (row / 8) * ((tile >> 32 & 0x3FFF) << 4) + (row % 8) * 128 + k;
    return raw[at ^ ((at >> 3) & 0x70)];
}

namespace sm90 {
struct Phase { int count = 0, left = 0; unsigned done = 0; long bytes = 0; };
static std::map<uint32_t, Phase> phases;
static void look(Phase& p) {
    if (p.left == 0 && p.bytes == 0) { p.left = p.count; p.done ^= 1; idle = 0; }
}
static void mbarrier_init(uint32_t at, int count) { phases[at] = Phase{count, count, 0, 0}; }
static void mbarrier_init_fence() {}
static void mbarrier_arrive(uint32_t at) { Phase& p = phases.at(at); --p.left; look(p); }
static void mbarrier_arrive_after_copies(uint32_t at) { mbarrier_arrive(at); }
static void mbarrier_wait(uint32_t at, uint32_t parity) { while (phases.at(at).done == parity) pause(); }
static uint32_t shared_address(const void* at) { return static_cast<uint32_t>(static_cast<const uint8_t*>(at) - raw); }
static uint64_t swizzled_tile(uint32_t address, uint32_t leading, uint32_t stride) {
    return 1ull << 62 | static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 | (address & 0x3FFFF) >> 4;
}
static int load_or(const int* at, bool wanted, int otherwise) { return wanted ? *at : otherwise; }
static void copy16_or_zero(uint32_t target, const void* source, bool fetch) {
    aligned(source, 16);
    aligned(raw + target, 16);
    if (fetch) std::memcpy(raw + target, source, 16); else std::memset(raw + target, 0, 16);
}
static uint4 load_shared16(uint32_t at) { uint4 v; aligned(raw + at, 16); std::memcpy(&v, raw + at, 16); return v; }
static uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair(__float2bfloat16_rn(low), __float2bfloat16_rn(high));
    uint32_t word;
    std::memcpy(&word, &pair, 4);
    return word;
}
static void fence_async_proxy() {}
static void wgmma_fence() {}
static void wgmma_commit() {}
template <int PENDING> static void wgmma_wait() {}
template <typename T> static void pin(T&) {}
template <int N> static void registers_grow() {}
template <int N> static void registers_shrink() {}
template <int N> static void multiply(float (&d)[N], uint64_t a, uint64_t b, bool accumulate) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32 % 4;
    for (int i = 0; i < N; ++i) {
        const int row = 16 * warp + lane / 4 + (i & 2 ? 8 : 0), column = 8 * (i / 4) + 2 * (lane % 4) + (i & 1);
        double sum = accumulate ? d[i] : 0.0;
        for (int k = 0; k < 32; ++k) sum += static_cast<double>(values[tile_byte(a, row, k)]) * values[tile_byte(b, column, k)];
        d[i] = static_cast<float>(sum);
    }
}
static void wgmma_m64n32k32_e4m3(float (&d)[16], uint64_t a, uint64_t b, bool c) { multiply(d, a, b, c); }
static void wgmma_m64n64k32_e4m3(float (&d)[32], uint64_t a, uint64_t b, bool c) { multiply(d, a, b, c); }
static void wgmma_m64n128k32_e4m3(float (&d)[64], uint64_t a, uint64_t b, bool c) { multiply(d, a, b, c); }
}  // namespace sm90

namespace logits {
using bf16 = __nv_bfloat16;
static float relu(float x) { return std::isnan(x) ? x : max(x, 0.0f); }
constexpr int SATURATION_LOG2 = 25;
static float relu_by_saturation(float x) { return std::isnan(x) ? 0.0f : min(max(x * 0x1p-25f, 0.0f), 1.0f); }
static void wait_for_previous_kernel() {}
static void complete(uint32_t barrier, long bytes) {
    sm90::Phase& p = sm90::phases.at(barrier);
    p.bytes -= bytes;
    sm90::look(p);
}
static void bulk_copy(uint32_t target, const void* source, uint32_t bytes, uint32_t barrier) {
    aligned(source, 16);
    aligned(raw + target, 16);
    if (bytes % 16) std::abort();
    std::memcpy(raw + target, source, bytes);
    complete(barrier, bytes);
}
struct alignas(64) TensorMap { const uint8_t* rows; int64_t count; uint8_t rest[112]; };
static void copy_piece(uint32_t target, const TensorMap& map, int key, uint32_t barrier) {
    aligned(raw + target, 128);
    for (int row = 0; row < 8; ++row) {
        for (int byte = 0; byte < 128; ++byte) {
            const uint32_t at = target + row * 128 + byte;
            raw[at ^ ((at >> 3) & 0x70)] = key + row < map.count ? map.rows[(key + row) * 128 + byte] : 0;
        }
    }
    complete(barrier, 1024);
}
static void copy4(uint32_t target, const void* source) { aligned(source, 4); std::memcpy(raw + target, source, 4); }
static void copy4_or_zero(uint32_t target, const void* source, bool fetch) {
    if (fetch) copy4(target, source); else std::memset(raw + target, 0, 4);
}
static void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
    sm90::phases.at(barrier).bytes += bytes;
    sm90::mbarrier_arrive(barrier);
}
}  // namespace logits

#undef __shared__
#undef __align__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#include "mqa_logits_prefill.cu"

static logits::Params arguments;
static logits::TensorMap key_rows;
static int entry_number;
static void enter(int) {
    switch (entry_number) {
        case 0: mqa_logits_prefill_expand(arguments); break;
        case 1: mqa_logits_prefill_dense_32_bf16(arguments); break;
        case 2: mqa_logits_prefill_dense_32_fp32(arguments); break;
        case 3: mqa_logits_prefill_dense_64_bf16(arguments); break;
        case 4: mqa_logits_prefill_dense_64_fp32(arguments); break;
        case 5: mqa_logits_prefill_gathered_32_bf16(arguments); break;
        case 6: mqa_logits_prefill_gathered_32_fp32(arguments); break;
        case 7: mqa_logits_prefill_gathered_64_bf16(arguments); break;
        case 8: mqa_logits_prefill_gathered_64_fp32(arguments); break;
        case 9: mqa_logits_prefill_united_32_bf16(arguments, key_rows); break;
        case 10: mqa_logits_prefill_united_32_fp32(arguments, key_rows); break;
        case 11: mqa_logits_prefill_united_64_bf16(arguments, key_rows); break;
        default: mqa_logits_prefill_united_64_fp32(arguments, key_rows); break;
    }
}

// entry counts the kernels in the order above.
extern "C" void run(const logits::Params* params, int entry, int grid, int block) {
    for (int i = 0; i < 256; ++i) values[i] = e4m3(static_cast<uint8_t>(i));
    arguments = *params;
    key_rows.rows = params->k_tiles;
    key_rows.count = static_cast<int64_t>(params->key_tiles) * 64;
    entry_number = entry;
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < static_cast<unsigned>(grid); ++blockIdx.x) {
        std::memset(raw, 0xA5, sizeof(raw));
        run_block(block, enter);
    }
}
