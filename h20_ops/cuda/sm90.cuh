// Names for the sm_90a instructions our kernels use: barriers, asynchronous copies, descriptors.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace sm90 {

constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- mbarrier -------------------------------------------------------------------------------

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ bool mbarrier_test(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Wait until the phase with this parity has completed.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_test(barrier, parity)) {
  }
}

// ---- named barriers (0 is __syncthreads) -------------------------------------------------------

template <int ID, int THREADS>
__device__ __forceinline__ void named_sync() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

template <int ID, int THREADS>
__device__ __forceinline__ void named_arrive() {
  asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

// ---- loads and asynchronous copies -----------------------------------------------------------------------

// Load a word, issued here and not where it is first used; `otherwise` if not `wanted`.
__device__ __forceinline__ int load_or(const int* address, bool wanted, int otherwise) {
  int value = otherwise;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p ld.global.nc.b32 %0, [%1];\n}\n"
      : "+r"(value)
      : "l"(address), "r"(static_cast<int>(wanted)));
  return value;
}

// Copy 16 bytes to shared memory, or write 16 zero bytes and read nothing when not `fetch`.
__device__ __forceinline__ void copy16_or_zero(uint32_t target, const void* source, bool fetch) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
               "r"(fetch ? 16 : 0)
               : "memory");
}

// Count this thread's arrival once all its copies issued so far have landed.
__device__ __forceinline__ void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// Order ordinary shared-memory accesses before tensor-core reads of the same memory.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- wgmma control -----------------------------------------------------------------------------

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keep the compiler from moving uses of accumulators across a wgmma boundary.
template <int N>
__device__ __forceinline__ void pin(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Keep values derived from this one from being computed elsewhere and held in registers until here.
__device__ __forceinline__ void pin(uint64_t& descriptor) {
  asm volatile("" : "+l"(descriptor));
}

// Have an address computed here, not where it is first used.
__device__ __forceinline__ void pin(const char*& address) {
  asm volatile("" : "+l"(address)::"memory");
}

template <int REGISTERS>
__device__ __forceinline__ void registers_grow() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

template <int REGISTERS>
__device__ __forceinline__ void registers_shrink() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

// Descriptor of a tile with 128-byte swizzle: 8 rows of 128 bytes are one 1024-byte atom.
// K contiguous: `stride` separates groups of 8 rows and `leading` is ignored. N contiguous:
// `leading` separates groups of 64 columns and `stride` groups of 8 rows along K.
__device__ __forceinline__ uint64_t swizzled_tile(uint32_t address, uint32_t leading,
                                                  uint32_t stride) {
  return (static_cast<uint64_t>(1) << 62) | (static_cast<uint64_t>(stride >> 4) << 32) |
         (static_cast<uint64_t>(leading >> 4) << 16) | ((address & 0x3FFFF) >> 4);
}

// ---- small pieces ------------------------------------------------------------------------------

// Store four 8x8 matrices of 16-bit elements; lane i addresses row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrix_x4(uint32_t address, const uint32_t* words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two floats as bf16 in one word, `low` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

}  // namespace sm90
