// Sparse MLA prefill for sm_90a: 64 heads of one query against its own list of keys.
//
// One block per multiprocessor walks over (query, group of 64 heads). Two consumer warpgroups split
// the output [64, 512] into a left and a right half of 256 columns, kept in registers; they score
// alternate blocks of 64 keys and hand each other the probabilities through shared memory, so that
// one's softmax runs under the other's matrix work. A producer warpgroup gathers keys in 16-byte
// pieces into four half blocks [64, 256], each freed on its own as soon as its last reader is done.
// The reference maximum travels with the probabilities; outputs are rescaled only when it must rise
// by more than 2^RESCALE_LOG2.
#include "sparse_mla_prefill_consume.cuh"
#include "sparse_mla_prefill_produce.cuh"

extern "C" __global__ void __launch_bounds__(3 * prefill::WARPGROUP, 1)
    sparse_mla_prefill_kernel(const __grid_constant__ prefill::Params p) {
  using namespace prefill;
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  if (threadIdx.x == 0) {
    if (sm90::shared_address(raw) % 1024 != 0) __trap();  // swizzled tiles rely on it
    sm90::mbarrier_init(sm90::shared_address(&shared.q_ready), WARPGROUP);
    sm90::mbarrier_init(sm90::shared_address(&shared.q_free), CONSUMERS / 32);
    for (int i = 0; i < 4; ++i) {
      sm90::mbarrier_init(sm90::shared_address(&shared.kv_ready[i]), WARPGROUP);
      sm90::mbarrier_init(sm90::shared_address(&shared.kv_free[i]), WARPGROUP / 32);
    }
    sm90::mbarrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
  if (warpgroup == 0) {
    sm90::registers_grow<CONSUMER_REGISTERS>();
    consume<0>(p, shared);
  } else if (warpgroup == 1) {
    sm90::registers_grow<CONSUMER_REGISTERS>();
    consume<1>(p, shared);
  } else {
    sm90::registers_shrink<PRODUCER_REGISTERS>();
    produce(p, shared);
  }
}
