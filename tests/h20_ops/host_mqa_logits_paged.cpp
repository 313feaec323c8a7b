// Build mqa_logits_paged.cu as host code: a block's 128 threads are fibres that run in turn and change
// at every barrier, shuffle and product. What the source asks of single instructions is written out
// here; put before the source, this stands in for mqa_logits_paged_memory.cuh, _wgmma.cuh and sm90.cuh.
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <vector_functions.h>

#include "host_fibres.h"

constexpr int BLOCK = 128;
alignas(1024) char memory[1 << 17];

template <bool MAX> static uint32_t halves(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i += 16) {
        const uint32_t x = (a >> i) & 0xFFFF, y = (b >> i) & 0xFFFF;
        r |= (MAX ? max(x, y) : min(x, y)) << i;
    }
    return r;
}
static uint32_t __vmaxu2(uint32_t a, uint32_t b) { return halves<true>(a, b); }
static uint32_t __vminu2(uint32_t a, uint32_t b) { return halves<false>(a, b); }
static float __int_as_float(int v) { float f; std::memcpy(&f, &v, 4); return f; }
static uint32_t __float_as_uint(float f) { uint32_t v; std::memcpy(&v, &f, 4); return v; }

namespace paged {

static uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = a | static_cast<uint64_t>(b) << 32;
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t s = selector >> (4 * i);
        const uint32_t byte = (bytes >> (8 * (s & 7))) & 0xFF;
        r |= ((s & 8) ? (byte & 0x80 ? 0xFFu : 0u) : byte) << (8 * i);
    }
    return r;
}
static void aligned(uint64_t address, int size) { if (address % size) std::abort(); }
template <typename T> static T load(uint64_t address) {
    aligned(address, sizeof(T));
    T v;
    std::memcpy(&v, reinterpret_cast<const void*>(address), sizeof(T));
    return v;
}
static uint64_t in_memory(uint32_t offset) { return reinterpret_cast<uint64_t>(memory) + offset; }
static uint32_t load4(uint64_t address) { return load<uint32_t>(address); }
static uint4 load16(uint64_t address) { return load<uint4>(address); }
static uint32_t load_shared4(uint32_t address) { return load4(in_memory(address)); }
static uint2 load_shared8(uint32_t address) { return load<uint2>(in_memory(address)); }
static void store_shared4(uint32_t address, uint32_t v) { aligned(address, 4); std::memcpy(memory + address, &v, 4); }
static void copy16(uint32_t target, uint64_t source) { aligned(target, 16); aligned(source, 16); std::memcpy(memory + target, reinterpret_cast<void*>(source), 16); }
static void copy4(uint32_t target, uint64_t source) { store_shared4(target, load4(source)); }
static void commit_copies() {}
template <int PENDING> static void wait_copies() {}
static void wait_for_previous_kernel() {}

static double e4m3(uint8_t byte) {
    const int exponent = (byte >> 3) & 15, mantissa = byte & 7;
    const double v = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
    return byte & 0x80 ? -v : v;
}
template <int ACCUMULATORS>
static void multiply(float (&d)[ACCUMULATORS], const uint32_t* a, uint64_t queries, bool accumulate) {
    std::memcpy(words[threadIdx.x], a, 16);
    __syncwarp();
    const int lane = threadIdx.x & 31;
    for (int i = 0; i < ACCUMULATORS; ++i) {
        const int column = 8 * (i / 4) + 2 * (lane % 4) + (i & 1);
        double sum = accumulate ? d[i] : 0.0;
        for (int k = 0; k < 32; ++k) {
            const uint32_t* from = words[(threadIdx.x & ~3u) + (k % 16) / 4];
            const uint8_t key = from[2 * (k / 16) + ((i & 2) ? 1 : 0)] >> (8 * (k % 4));
            uint32_t at = ((queries & 0x3FFF) << 4) + (column / 8) * ((queries >> 32 & 0x3FFF) << 4) + (column % 8) * 128 + k;
            at ^= (at >> 3) & 0x70;
            sum += e4m3(key) * e4m3(memory[at]);
        }
        d[i] = static_cast<float>(sum);
    }
    __syncwarp();
}

}  // namespace paged

namespace sm90 {
static uint32_t shared_address(const void* at) { return static_cast<uint32_t>(static_cast<const char*>(at) - memory); }
static uint64_t swizzled_tile(uint32_t address, uint32_t leading, uint32_t stride) {
    return 1ull << 62 | static_cast<uint64_t>(stride >> 4) << 32 | static_cast<uint64_t>(leading >> 4) << 16 | (address & 0x3FFFF) >> 4;
}
static uint4 load_shared16(uint32_t address) { return paged::load16(paged::in_memory(address)); }
static void fence_async_proxy() {}
static void wgmma_fence() {}
static void wgmma_commit() {}
template <int PENDING> static void wgmma_wait() {}
template <typename T> static void pin(T&) {}
}  // namespace sm90

#undef __shared__
#undef __align__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#include "mqa_logits_paged.cu"

static paged::Params arguments;
static void enter(int) { mqa_logits_paged(arguments); }

extern "C" void run(const paged::Params* params, int grid) {
    arguments = *params;
    gridDim.x = grid;
    for (blockIdx.x = 0; blockIdx.x < static_cast<unsigned>(grid); ++blockIdx.x) {
        std::memset(memory, 0xA5, sizeof(memory));
        run_block(BLOCK, enter);
    }
}
