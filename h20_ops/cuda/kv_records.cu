// Store bf16 rows as V4.1 cache records, and load records as bf16: 528-byte FP8, 288-byte FP4.
//
// One warp works on one row of 512 channels, lane l on channels 16 l .. 16 l + 15. A record is one
// contiguous run of bytes, values first; pages may lie anywhere, so offsets are 64-bit.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cstdint>

namespace {

constexpr int WARPS = 8;
constexpr int PER_LANE = 16;
constexpr int WIDTH = 512;
constexpr uint8_t E4M3_NAN = 0x7f;

struct Params {
    void* cache;
    const int32_t* slots;
    void* rows;  // bf16; read by the store, written by the load
    int64_t page_stride;
    int64_t row_stride;  // in elements
    int32_t page_size;
    int32_t num_rows;
};

template <int BYTES>
__device__ uint8_t* record_at(const Params& p, int slot) {
    const int page = slot / p.page_size;
    const int64_t offset = static_cast<int64_t>(page) * p.page_stride;
    return static_cast<uint8_t*>(p.cache) + offset +
           static_cast<int64_t>(slot - page * p.page_size) * BYTES;
}

__device__ uint8_t to_e4m3(float x) {
    return isnan(x) ? E4M3_NAN
                    : static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3));
}

__device__ float from_e4m3(uint8_t byte) {
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3)));
}

// The exponent of a scale, rounded up to a power of two; exact powers stay.
__device__ uint32_t to_ue8m0(float scale) {
    const uint32_t bits = __float_as_uint(scale);
    return isnan(scale) ? 255u : min((bits >> 23) + ((bits & 0x7fffffu) != 0), 255u);
}

__device__ float from_ue8m0(uint32_t byte) {
    if (byte == 255u) return __uint_as_float(0x7fffffffu);
    return __uint_as_float(byte == 0 ? 0x400000u : byte << 23);
}

// Nearest e2m1 code, ties to the even code; NaN gives 6 as a positive number.
__device__ uint32_t to_e2m1(float x) {
    if (isnan(x)) return 7u;
    const float a = fabsf(x);
    const uint32_t code = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) +
                          (a >= 3.5f) + (a > 5.0f);
    return code | (__float_as_uint(x) >> 31 << 3);
}

// Exponent and mantissa of the code, put into a float's, are too small by 2^126.
__device__ float from_e2m1(uint32_t code) {
    const float magnitude = __uint_as_float((code & 7u) << 22) * 0x1p126f;
    return (code & 8u) ? -magnitude : magnitude;
}

__device__ void read_row(const Params& p, int row, int lane, float (&x)[PER_LANE]) {
    const auto* source = static_cast<const __nv_bfloat16*>(p.rows) + row * p.row_stride;
    const uint4* chunks = reinterpret_cast<const uint4*>(source + lane * PER_LANE);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const uint4 chunk = chunks[half];
        const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            x[half * 8 + 2 * i] = __uint_as_float(words[i] << 16);
            x[half * 8 + 2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}

__device__ void write_row(const Params& p, int row, int lane, const float (&x)[PER_LANE]) {
    auto* target = static_cast<__nv_bfloat16*>(p.rows) + row * p.row_stride;
    uint4* chunks = reinterpret_cast<uint4*>(target + lane * PER_LANE);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const __nv_bfloat162 pair =
                __floats2bfloat162_rn(x[half * 8 + 2 * i], x[half * 8 + 2 * i + 1]);
            words[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
        chunks[half] = make_uint4(words[0], words[1], words[2], words[3]);
    }
}

// The largest magnitude, NaN if there is one.
__device__ float largest(const float (&x)[PER_LANE]) {
    float amax = 0.0f;
    bool has_nan = false;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        amax = fmaxf(amax, fabsf(x[i]));
        has_nan |= isnan(x[i]);
    }
    return has_nan ? __uint_as_float(0x7fffffffu) : amax;
}

__device__ float at_least(float amax, float floor) { return amax < floor ? floor : amax; }

struct Fp8 {
    static constexpr int BYTES = 528;

    static __device__ void store(uint8_t* record, int lane, const float (&x)[PER_LANE]) {
        const float own = largest(x);
        const float other = __shfl_xor_sync(0xffffffffu, own, 1);
        const float amax = isnan(own) || isnan(other) ? own + other : fmaxf(own, other);
        const uint32_t exponent = to_ue8m0(__fdiv_rn(at_least(amax, 1e-4f), 448.0f));
        const float scale = from_ue8m0(exponent);
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const uint32_t byte = to_e4m3(__fdiv_rn(x[i], scale));
            words[i / 4] |= byte << (i % 4 * 8);
        }
        reinterpret_cast<uint4*>(record)[lane] = make_uint4(words[0], words[1], words[2], words[3]);
        if (lane % 2 == 0) record[WIDTH + lane / 2] = static_cast<uint8_t>(exponent);
    }

    static __device__ void load(const uint8_t* record, int lane, float (&x)[PER_LANE]) {
        const uint4 chunk = reinterpret_cast<const uint4*>(record)[lane];
        const uint32_t words[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
        const float scale = from_ue8m0(record[WIDTH + lane / 2]);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            x[i] = from_e4m3(static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8))) * scale;
        }
    }
};

struct Fp4 {
    static constexpr int BYTES = 288;

    // Reciprocals where division would do: it is the engine's rule, and shows in a few codes.
    static __device__ void store(uint8_t* record, int lane, const float (&x)[PER_LANE]) {
        const float amax = at_least(largest(x), 6.0f * 0x1p-9f);
        const uint8_t scale_byte = to_e4m3(__fmul_rn(amax, 1.0f / 6.0f));
        const float inverse = __fdiv_rn(1.0f, from_e4m3(scale_byte));
        uint32_t words[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            words[i / 8] |= to_e2m1(__fmul_rn(x[i], inverse)) << (i % 8 * 4);
        }
        reinterpret_cast<uint2*>(record)[lane] = make_uint2(words[0], words[1]);
        record[WIDTH / 2 + lane] = scale_byte;
    }

    static __device__ void load(const uint8_t* record, int lane, float (&x)[PER_LANE]) {
        const uint2 chunk = reinterpret_cast<const uint2*>(record)[lane];
        const uint32_t words[2] = {chunk.x, chunk.y};
        const float scale = from_e4m3(record[WIDTH / 2 + lane]);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            x[i] = from_e2m1(words[i / 8] >> (i % 8 * 4) & 15u) * scale;
        }
    }
};

template <class Record>
__device__ void store_rows(const Params& p) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= p.num_rows) return;  // whole warps leave
    const int slot = p.slots[row];
    if (slot < 0) return;
    float x[PER_LANE];
    read_row(p, row, threadIdx.x % 32, x);
    Record::store(record_at<Record::BYTES>(p, slot), threadIdx.x % 32, x);
}

template <class Record>
__device__ void load_rows(const Params& p) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= p.num_rows) return;
    const int slot = p.slots[row];
    float x[PER_LANE] = {};
    if (slot >= 0) Record::load(record_at<Record::BYTES>(p, slot), threadIdx.x % 32, x);
    write_row(p, row, threadIdx.x % 32, x);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(WARPS * 32) store_fp8(const __grid_constant__ Params p) {
    store_rows<Fp8>(p);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32) store_fp4(const __grid_constant__ Params p) {
    store_rows<Fp4>(p);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32) load_fp8(const __grid_constant__ Params p) {
    load_rows<Fp8>(p);
}
extern "C" __global__ void __launch_bounds__(WARPS * 32) load_fp4(const __grid_constant__ Params p) {
    load_rows<Fp4>(p);
}
