// What the top-k kernel asks of the device beyond plain CUDA: bulk copies, clusters, launch order.
// The tests put their own version in its place and run the rest on a CPU.
#pragma once

#include "sm90.cuh"

namespace device {

__device__ __forceinline__ void* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

__device__ __forceinline__ void barrier_init(uint64_t* barrier) {
  sm90::mbarrier_init(sm90::shared_address(barrier), 1);
}

__device__ __forceinline__ void barrier_init_fence() { sm90::mbarrier_init_fence(); }

// Copy `bytes` (a multiple of 16, both ends aligned to 16) to shared memory; the barrier's phase ends
// when they are there. One thread calls this.
__device__ __forceinline__ void bulk_copy(void* target, const void* source, uint32_t bytes,
                                          uint64_t* barrier) {
  const uint32_t address = sm90::shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
          sm90::shared_address(target)),
      "l"(source), "r"(bytes), "r"(address)
      : "memory");
}

__device__ __forceinline__ void barrier_wait(uint64_t* barrier, uint32_t parity) {
  sm90::mbarrier_wait(sm90::shared_address(barrier), parity);
}

// Copy 16 bytes to shared memory for this thread to read after copies_wait.
__device__ __forceinline__ void copy16(void* target, const void* source) {
  sm90::copy16_or_zero(sm90::shared_address(target), source, true);
}

__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ void wait_for_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_sync() {
  cluster_arrive();
  cluster_wait();
}

// Add to a word of shared memory and return what was there; cheap while few threads of a warp do.
__device__ __forceinline__ uint32_t add_shared(uint32_t* place, uint32_t value) {
  uint32_t before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "r"(sm90::shared_address(place)), "r"(value)
               : "memory");
  return before;
}

// The same place in the shared memory of another block of the cluster.
template <class T>
__device__ __forceinline__ T* peer(T* place, uint32_t rank) {
  uint64_t address;
  asm volatile("mapa.u64 %0, %1, %2;"
               : "=l"(address)
               : "l"(reinterpret_cast<uint64_t>(place)), "r"(rank));
  return reinterpret_cast<T*>(address);
}

}  // namespace device
