// Build kv_records.cu as host code: one warp's lanes run one after another, twice, so that the one
// shuffle (with the neighbouring lane) finds its partner's value in the second pass.
#include <cuda_runtime.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

using std::isnan;
using std::min;

static float __fdiv_rn(float a, float b) { volatile float r = a / b; return r; }
static float __fmul_rn(float a, float b) { volatile float r = a * b; return r; }
static uint32_t __float_as_uint(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
static float __uint_as_float(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

static float lanes[32];
static int pass, lane;
static float __shfl_xor_sync(unsigned, float value, int mask) {
    if (pass == 0) lanes[lane] = value;
    return lanes[lane ^ (pass == 0 ? 0 : mask)];
}

struct Index { unsigned x; };
static Index blockIdx, threadIdx;
#define __grid_constant__
#undef __launch_bounds__
#define __launch_bounds__(x)
#include "kv_records.cu"

extern "C" void run(int kernel, void* cache, const int* slots, void* rows, long page_stride,
                    long row_stride, int page_size, int num_rows) {
    Params p{cache, slots, rows, page_stride, row_stride, page_size, num_rows};
    void (*const kernels[])(Params) = {store_fp8, store_fp4, load_fp8, load_fp4};
    for (blockIdx.x = 0; blockIdx.x < (num_rows + WARPS - 1u) / WARPS; ++blockIdx.x)
        for (int warp = 0; warp < WARPS; ++warp)
            for (pass = 0; pass < 2; ++pass)
                for (lane = 0; lane < 32; ++lane) {
                    threadIdx.x = warp * 32 + lane;
                    kernels[kernel](p);
                }
}
