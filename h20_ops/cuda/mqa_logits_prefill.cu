// Indexer logits of prefill rows for sm_90a: sum over heads of weight * relu(q . k), FP4 in, FP8 wgmma.
//
// Two launches: one expands queries and keys to e4m3 tiles and plans, one multiplies. See
// mqa_logits_prefill_layout.cuh for the tiles, _dense.cuh and _candidates.cuh for the products.
#include "mqa_logits_prefill_candidates.cuh"
#include "mqa_logits_prefill_dense.cuh"
#include "mqa_logits_prefill_expand.cuh"
#include "mqa_logits_prefill_unite.cuh"

namespace logits {

constexpr int MATH_REGISTERS = 160;
constexpr int FEED_REGISTERS = 32;

template <int HALVES, typename Out, bool UNION>
__device__ __forceinline__ void dense(const Params& p, const TensorMap* key_matrix, uint8_t* raw) {
  DenseShared& shared = *reinterpret_cast<DenseShared*>(raw);
  if (threadIdx.x == 0) {
    if (sm90::shared_address(raw) % 1024 != 0) __trap();  // swizzled tiles rely on it
    for (int i = 0; i < STAGES; ++i) {
      sm90::mbarrier_init(sm90::shared_address(&shared.keys_ready[i]), UNION ? 33 : 1);
      sm90::mbarrier_init(sm90::shared_address(&shared.keys_free[i]), 4 * MATH_WARPGROUPS);
    }
    for (int i = 0; i < 2; ++i) {
      sm90::mbarrier_init(sm90::shared_address(&shared.q_ready[i]), 1);
      sm90::mbarrier_init(sm90::shared_address(&shared.q_free[i]), 4 * MATH_WARPGROUPS);
    }
    sm90::mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
  if (warpgroup == MATH_WARPGROUPS) {
    sm90::registers_shrink<FEED_REGISTERS>();
    if constexpr (UNION) {
      if (threadIdx.x < MATH_WARPGROUPS * WARPGROUP + 32) feed_union(p, *key_matrix, shared);
    } else {
      if (threadIdx.x == MATH_WARPGROUPS * WARPGROUP) feed_dense(p, shared);
    }
  } else {
    sm90::registers_grow<MATH_REGISTERS>();
    compute_dense<HALVES, Out, UNION>(p, shared, warpgroup);
  }
}

template <int HALVES, typename Out>
__device__ __forceinline__ void candidates(const Params& p, uint8_t* raw) {
  CandidateShared& shared = *reinterpret_cast<CandidateShared*>(raw);
  if (threadIdx.x == 0) {
    if (sm90::shared_address(raw) % 1024 != 0) __trap();
    for (int i = 0; i < CANDIDATE_STAGES; ++i) {
      sm90::mbarrier_init(sm90::shared_address(&shared.keys_ready[i]), WARPGROUP);
      sm90::mbarrier_init(sm90::shared_address(&shared.keys_free[i]), 4 * CANDIDATE_MATH_WARPGROUPS);
    }
    for (int i = 0; i < 2; ++i) {
      sm90::mbarrier_init(sm90::shared_address(&shared.q_ready[i]), 1);
      sm90::mbarrier_init(sm90::shared_address(&shared.q_free[i]), 4 * CANDIDATE_MATH_WARPGROUPS);
    }
    sm90::mbarrier_init_fence();
  }
  __syncthreads();
  wait_for_previous_kernel();
  const int warpgroup = __shfl_sync(0xffffffffu, threadIdx.x / WARPGROUP, 0);
  if (warpgroup == CANDIDATE_MATH_WARPGROUPS) {
    gather_candidates(p, shared);
  } else {
    compute_candidates<HALVES, Out>(p, shared, warpgroup);
  }
}

}  // namespace logits

extern "C" __global__ void __launch_bounds__(logits::EXPAND_THREADS)
    mqa_logits_prefill_expand(const __grid_constant__ logits::Params p) {
  __shared__ union {
    logits::ExpandShared expand;
    logits::UniteShared unite;
  } shared;
  // What takes longest starts first.
  const int planners = p.kind == logits::DENSE ? 1 : p.kind == logits::UNITED ? p.row_blocks : 0;
  const int block = static_cast<int>(blockIdx.x) - planners;
  if (block < 0) {
    if (p.kind == logits::DENSE) logits::plan(p, shared.expand);
    else logits::unite(p, blockIdx.x, shared.unite);
  } else if (block < p.key_tiles) {
    logits::expand_keys(p, block);
  } else {
    logits::expand_queries(p, block - p.key_tiles, shared.expand);
  }
}

#define DENSE(NAME, HALVES, OUT)                                                            \
  extern "C" __global__ void __launch_bounds__((logits::MATH_WARPGROUPS + 1) * logits::WARPGROUP, 1) \
      NAME(const __grid_constant__ logits::Params p) {                                      \
    extern __shared__ __align__(1024) uint8_t raw[];                                        \
    logits::dense<HALVES, OUT, false>(p, nullptr, raw);                                     \
  }
#define UNITED(NAME, HALVES, OUT)                                                           \
  extern "C" __global__ void __launch_bounds__((logits::MATH_WARPGROUPS + 1) * logits::WARPGROUP, 1) \
      NAME(const __grid_constant__ logits::Params p,                                        \
           const __grid_constant__ logits::TensorMap key_matrix) {                          \
    extern __shared__ __align__(1024) uint8_t raw[];                                        \
    logits::dense<HALVES, OUT, true>(p, &key_matrix, raw);                                  \
  }
#define CANDIDATES(NAME, HALVES, OUT)                                                        \
  extern "C" __global__ void                                                                 \
  __launch_bounds__((logits::CANDIDATE_MATH_WARPGROUPS + 1) * logits::WARPGROUP, 2)          \
      NAME(const __grid_constant__ logits::Params p) {                                       \
    extern __shared__ __align__(1024) uint8_t raw[];                                         \
    logits::candidates<HALVES, OUT>(p, raw);                                                 \
  }
DENSE(mqa_logits_prefill_dense_32_bf16, 1, logits::bf16)
DENSE(mqa_logits_prefill_dense_32_fp32, 1, float)
UNITED(mqa_logits_prefill_united_32_bf16, 1, logits::bf16)
UNITED(mqa_logits_prefill_united_32_fp32, 1, float)
CANDIDATES(mqa_logits_prefill_gathered_32_bf16, 1, logits::bf16)
CANDIDATES(mqa_logits_prefill_gathered_32_fp32, 1, float)
DENSE(mqa_logits_prefill_dense_64_bf16, 2, logits::bf16)
DENSE(mqa_logits_prefill_dense_64_fp32, 2, float)
UNITED(mqa_logits_prefill_united_64_bf16, 2, logits::bf16)
UNITED(mqa_logits_prefill_united_64_fp32, 2, float)
CANDIDATES(mqa_logits_prefill_gathered_64_bf16, 2, logits::bf16)
CANDIDATES(mqa_logits_prefill_gathered_64_fp32, 2, float)
