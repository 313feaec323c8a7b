// Single instructions the prefill logits use beside those of sm90.cuh: copies, and the relu.
#pragma once

#include "fp8_wgmma.cuh"
#include "sm90.cuh"

namespace logits {

using bf16 = __nv_bfloat16;

// max(x, 0), NaN for NaN.
__device__ __forceinline__ float relu(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
}

// max(x, 0) * 2^-SATURATION_LOG2 for x below 2^SATURATION_LOG2: a multiplication, where relu is a
// comparison, which goes through another pipe at half the rate. 0 for NaN.
constexpr int SATURATION_LOG2 = 25;
__device__ __forceinline__ float relu_by_saturation(float x) {
  return __saturatef(x * (1.0f / (1 << SATURATION_LOG2)));
}

__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ void bulk_copy(uint32_t target, const void* source, uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          target),
      "l"(source), "r"(bytes), "r"(barrier)
      : "memory");
}

struct alignas(64) TensorMap {
  uint8_t bytes[128];
};

// Copy 8 rows of a key matrix, from row `key` on, to a tile in the 128-byte swizzle; rows behind the
// last are zeros.
__device__ __forceinline__ void copy_piece(uint32_t target, const TensorMap& map, int key,
                                           uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3}], [%4];" ::"r"(target),
      "l"(&map), "r"(0), "r"(key), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void copy4(uint32_t target, const void* source) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(target), "l"(source) : "memory");
}

__device__ __forceinline__ void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void copy4_or_zero(uint32_t target, const void* source, bool fetch) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(target), "l"(source),
               "r"(fetch ? 4 : 0)
               : "memory");
}

}  // namespace logits
