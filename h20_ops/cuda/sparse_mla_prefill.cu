// Sparse MLA prefill for sm_90a: 64 heads of one query against its own list of keys.
//
// One block per multiprocessor walks over (query, group of 64 heads). Two consumer warpgroups split
// the output [64, 512] into a left and a right half of 256 columns, kept in registers; they score
// alternate blocks of 64 keys and hand each other the probabilities through shared memory, so that
// one's softmax runs under the other's matrix work. A producer warpgroup gathers keys in 16-byte
// pieces into four half blocks [64, 256], each freed on its own as soon as its last reader is done.
// The reference maximum travels with the probabilities; outputs are rescaled only when it must rise
// by more than 2^RESCALE_LOG2.
#include "sm90.cuh"
#include "sm90_wgmma.cuh"

using bf16 = __nv_bfloat16;

struct Params {
  const bf16* q;
  const bf16* kv;
  const int* indices;
  const float* sink;        // may be null
  const int* topk_length;   // may be null
  bf16* out;
  float* max_logits;
  float* lse;
  int64_t q_row_stride;     // strides in elements
  int64_t q_head_stride;
  int64_t kv_row_stride;
  int64_t indices_row_stride;
  int s_kv;
  int h_q;
  int head_groups;
  int topk;
  int num_works;
  float sm_scale;
};

namespace {

constexpr int HEADS = 64;
constexpr int KEYS = 64;
constexpr int DIM = 512;
constexpr int TILE_BYTES = 64 * 128;             // 64 rows of 64 bf16, one swizzled tile
constexpr int HALF_BYTES = 4 * TILE_BYTES;       // [64, 256]
constexpr int WARPGROUP = 128;
constexpr int CONSUMERS = 2 * WARPGROUP;
constexpr float RESCALE_LOG2 = 8.0f;
#ifndef CREG
#define CREG 232
#define PREG 40
#endif
constexpr int CONSUMER_REGISTERS = CREG;
constexpr int PRODUCER_REGISTERS = PREG;

struct Shared {
  alignas(1024) uint8_t q[8 * TILE_BYTES];
  alignas(1024) uint8_t kv[4][HALF_BYTES];       // index 2 * (key block % 2) + half
  alignas(1024) uint8_t p[2][TILE_BYTES];        // probabilities of the block a warpgroup scored
  float reference[2][HEADS];                     // the maximum p is relative to, in log2 units
  float sum[2][2][HEADS];
  float top[2][2][HEADS];
  alignas(8) uint64_t q_ready;
  uint64_t q_free;
  uint64_t kv_ready[4];
  uint64_t kv_free[4];
};
static_assert(sizeof(Shared) + 1024 <= 232448, "one block's shared memory on sm_90");

enum NamedBarrier { FIRST_P_READY = 1, SECOND_P_READY = 2, TOTALS_READY = 3 };

struct Row {            // what a thread knows about its two rows, r and r + 8
  float reference[2];   // output, sum and probabilities are relative to it (log2 units)
  float sum[2];         // of the blocks this warpgroup scored, this thread's columns
  float top[2];         // largest logit seen by this warpgroup, before scaling
};

__device__ __forceinline__ int num_keys(const Params& p, int row) {
  if (p.topk_length == nullptr) return p.topk;
  return max(0, min(p.topk, __ldg(p.topk_length + row)));
}

__device__ __forceinline__ void rescale_output(float (&o)[128], float low, float high) {
  // Rows rarely move: skip the 128 multiplications when no row of the warp did.
  if (__any_sync(0xffffffffu, low != 1.0f || high != 1.0f)) {
#pragma unroll
    for (int i = 0; i < 128; i += 4) {
      o[i] *= low;
      o[i + 1] *= low;
      o[i + 2] *= high;
      o[i + 3] *= high;
    }
  }
}

// Move this thread's rows to a new reference and give the factors for its output.
__device__ __forceinline__ void change_reference(Row& row, int i, float reference, float& factor) {
  factor = reference == row.reference[i] ? 1.0f : sm90::exp2_fast(row.reference[i] - reference);
  row.reference[i] = reference;
  row.sum[i] *= factor;
}

// Validity of 64 keys as bits; every warp of a warpgroup asks for itself.
struct KeyMask {
  uint32_t low, high;
};

__device__ __forceinline__ KeyMask key_mask(const int* indices, int first, int count, int s_kv) {
  const int lane = threadIdx.x % 32;
  const int a = first + lane < count ? __ldg(indices + first + lane) : -1;
  const int b = first + 32 + lane < count ? __ldg(indices + first + 32 + lane) : -1;
  return {__ballot_sync(0xffffffffu, a >= 0 && a < s_kv),
          __ballot_sync(0xffffffffu, b >= 0 && b < s_kv)};
}

// Turn logits into probabilities relative to the (possibly raised) reference.
// In: logits s [64 keys] of this thread; out: bf16 pairs p, factors for the output.
__device__ __forceinline__ void softmax(float (&s)[32], uint32_t (&p)[16], Row& row,
                                        const KeyMask& mask, float scale_log2,
                                        float (&factor)[2]) {
  if ((mask.low & mask.high) != 0xffffffffu) {
    const int column = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t bits = (j < 4 ? mask.low : mask.high) >> (8 * (j % 4) + column);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (((bits >> (i & 1)) & 1) == 0) s[4 * j + i] = -INFINITY;
      }
    }
  }
  float offset[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float top = fmaxf(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) {
      top = fmaxf(top, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    row.top[i] = fmaxf(row.top[i], top);
    const float scaled = top * scale_log2;
    const bool raise = scaled > row.reference[i] + RESCALE_LOG2;
    change_reference(row, i, raise ? scaled : row.reference[i], factor[i]);
    offset[i] = row.reference[i] == -INFINITY ? 0.0f : row.reference[i];
  }
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float a = sm90::exp2_fast(s[4 * j + 2 * i] * scale_log2 - offset[i]);
      const float b = sm90::exp2_fast(s[4 * j + 2 * i + 1] * scale_log2 - offset[i]);
      sum[i] += a + b;
      p[2 * j + i] = sm90::pack_bf16(a, b);
    }
  }
  row.sum[0] += sum[0];
  row.sum[1] += sum[1];
}

// Logits of 64 keys over one half of the head dimension, added to s (or replacing it).
__device__ __forceinline__ void score_half(float (&s)[32], uint64_t q_tile, uint64_t k_tile,
                                           bool first) {
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t step = (tile * TILE_BYTES + k * 32) >> 4;
      sm90::wgmma_m64n64k16_kk(s, q_tile + step, k_tile + step, !first || tile > 0 || k > 0);
    }
  }
}

__device__ __forceinline__ void add_own_values(float (&o)[128], const uint32_t (&p)[16],
                                               uint64_t v_tile) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sm90::wgmma_m64n256k16_rn(o, p + 4 * k, v_tile + ((k * 2048) >> 4), true);
  }
}

__device__ __forceinline__ void add_other_values(float (&o)[128], uint64_t p_tile,
                                                 uint64_t v_tile) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    sm90::wgmma_m64n256k16_kn(o, p_tile + ((k * 32) >> 4), v_tile + ((k * 2048) >> 4), true);
  }
}

// Give the other warpgroup this one's probabilities and the reference they are relative to.
__device__ __forceinline__ void hand_over(uint32_t tile, float* reference, const uint32_t (&p)[16],
                                          const Row& row) {
  const int lane = threadIdx.x % 32;
  const int warp = (threadIdx.x % WARPGROUP) / 32;
  const uint32_t line = tile + (16 * warp + lane % 16) * 128;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t chunk = (2 * k + lane / 16) ^ (lane % 8);
    sm90::store_matrix_x4(line + chunk * 16, p + 4 * k);
  }
  if (lane % 4 == 0) {
    reference[16 * warp + lane / 4] = row.reference[0];
    reference[16 * warp + lane / 4 + 8] = row.reference[1];
  }
  sm90::fence_async_proxy();
}

__device__ __forceinline__ void take_reference(float (&o)[128], Row& row, const float* reference) {
  const int r = 16 * ((threadIdx.x % WARPGROUP) / 32) + (threadIdx.x % 32) / 4;
  float low, high;
  change_reference(row, 0, reference[r], low);
  change_reference(row, 1, reference[r + 8], high);
  rescale_output(o, low, high);
}

// Transpose 4x4 words among four neighbouring lanes: word j of lane t becomes word t of lane j.
__device__ __forceinline__ void transpose_quad(uint32_t (&w)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
    if (odd) w[i] = got; else w[i + 1] = got;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t got = __shfl_xor_sync(0xffffffffu, upper ? w[i] : w[i + 2], 2);
    if (upper) w[i] = got; else w[i + 2] = got;
  }
}

// Normalise and write this warpgroup's half of the output, and the row statistics from the left one.
template <int SIDE>
__device__ __forceinline__ void finish(const Params& p, Shared& shared, float (&o)[128], Row& row,
                                       int query, int head_group, int buffer) {
  const int lane = threadIdx.x % 32;
  const int r = 16 * ((threadIdx.x % WARPGROUP) / 32) + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    row.sum[i] += __shfl_xor_sync(0xffffffffu, row.sum[i], 1);
    row.sum[i] += __shfl_xor_sync(0xffffffffu, row.sum[i], 2);
    if (lane % 4 == 0) {
      shared.sum[buffer][SIDE][r + 8 * i] = row.sum[i];
      shared.top[buffer][SIDE][r + 8 * i] = row.top[i];
    }
  }
  sm90::named_sync<TOTALS_READY, CONSUMERS>();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = head_group * HEADS + r + 8 * i;
    const bool real = head < p.h_q;
    const float sum = shared.sum[buffer][0][r + 8 * i] + shared.sum[buffer][1][r + 8 * i];
    const float top = fmaxf(shared.top[buffer][0][r + 8 * i], shared.top[buffer][1][r + 8 * i]);
    const int64_t place = static_cast<int64_t>(query) * p.h_q + head;
    float total = sum;
    if (p.sink != nullptr && real) {
      total += sm90::exp2_fast(__ldg(p.sink + head) * sm90::LOG2E - row.reference[i]);
    }
    const float inverse = sum > 0.0f ? 1.0f / total : 0.0f;
    if (SIDE == 0 && lane % 4 == 0 && real) {
      p.max_logits[place] = top * p.sm_scale;
      p.lse[place] = sum > 0.0f ? row.reference[i] * sm90::LN2 + logf(sum) : INFINITY;
    }
    // Four lanes write 64 contiguous bytes of a row at a time.
    bf16* target = p.out + place * DIM + SIDE * (DIM / 2) + (lane % 4) * 8;
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      uint32_t w[4];
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const int at = 4 * (j + g) + 2 * i;
        w[g] = sm90::pack_bf16(o[at] * inverse, o[at + 1] * inverse);
      }
      transpose_quad(w);
      if (real) *reinterpret_cast<uint4*>(target + j * 8) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

template <int SIDE>
__device__ __forceinline__ void consume(const Params& p, Shared& shared) {
  const float scale_log2 = p.sm_scale * sm90::LOG2E;
  const int s_kv = p.s_kv;
  const bool leader = threadIdx.x % 32 == 0;
  const uint32_t kv_ready = sm90::shared_address(shared.kv_ready);
  const uint32_t kv_free = sm90::shared_address(shared.kv_free);
  const uint64_t q_tile = sm90::swizzled_tile(sm90::shared_address(shared.q), 0, 1024);
  const uint64_t k_tile = sm90::swizzled_tile(sm90::shared_address(shared.kv), 0, 1024);
  const uint64_t v_tile = sm90::swizzled_tile(sm90::shared_address(shared.kv), TILE_BYTES, 1024);
  const uint64_t p_tile = sm90::swizzled_tile(sm90::shared_address(shared.p[1 - SIDE]), 0, 1024);
  const uint32_t own_p = sm90::shared_address(shared.p[SIDE]);
  constexpr uint64_t HALF_STEP = HALF_BYTES >> 4;
  constexpr int OWN = 2 * SIDE + SIDE;             // own key block, own half
  constexpr int OWN_FAR = 2 * SIDE + (1 - SIDE);   // own key block, the other's half
  constexpr int OTHER = 2 * (1 - SIDE) + SIDE;     // the other's key block, own half

  float o[128], s[32];
  uint32_t probabilities[16];
  uint32_t parity_own = 0, parity_other = 0, parity_q = 0;
  int buffer = 0;

  for (int work = blockIdx.x; work < p.num_works; work += gridDim.x) {
    const int query = work / p.head_groups, head_group = work % p.head_groups;
    const int count = num_keys(p, query);
    const int blocks = (count + KEYS - 1) / KEYS;
    const int* indices = p.indices + query * p.indices_row_stride;
    Row row{{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;

    if (blocks > 0) sm90::mbarrier_wait(sm90::shared_address(&shared.q_ready), parity_q);
    if (SIDE == 1 && blocks == 1 && leader) {
      sm90::mbarrier_arrive(sm90::shared_address(&shared.q_free));
    }

    const auto score = [&](int block) {  // leaves the logits of one own key block in flight
      sm90::mbarrier_wait(kv_ready + 8 * OWN, parity_own);
      sm90::fence_async_proxy();
      sm90::pin(s);
      sm90::wgmma_fence();
      score_half(s, q_tile + SIDE * HALF_STEP, k_tile + OWN * HALF_STEP, true);
      sm90::mbarrier_wait(kv_ready + 8 * OWN_FAR, parity_own);
      sm90::fence_async_proxy();
      sm90::wgmma_fence();
      score_half(s, q_tile + (1 - SIDE) * HALF_STEP, k_tile + OWN_FAR * HALF_STEP, false);
      sm90::wgmma_commit();
    };
    const auto add_other = [&] {  // leaves the products with the other's key block in flight
      sm90::named_sync<SIDE == 0 ? SECOND_P_READY : FIRST_P_READY, CONSUMERS>();
      take_reference(o, row, shared.reference[1 - SIDE]);
      sm90::mbarrier_wait(kv_ready + 8 * OTHER, parity_other);
      sm90::fence_async_proxy();
      sm90::pin(o);
      sm90::wgmma_fence();
      add_other_values(o, p_tile, v_tile + OTHER * HALF_STEP);
      sm90::wgmma_commit();
    };
    const auto free_other = [&] {
      sm90::wgmma_wait<0>();
      sm90::pin(o);
      if (leader) sm90::mbarrier_arrive(kv_free + 8 * OTHER);
      parity_other ^= 1;
    };
    const auto add_own = [&](const float (&factor)[2]) {
      hand_over(own_p, shared.reference[SIDE], probabilities, row);
      sm90::named_arrive<SIDE == 0 ? FIRST_P_READY : SECOND_P_READY, CONSUMERS>();
      rescale_output(o, factor[0], factor[1]);
      sm90::pin(o);
      sm90::wgmma_fence();
      add_own_values(o, probabilities, v_tile + OWN * HALF_STEP);
      sm90::wgmma_commit();
      sm90::wgmma_wait<0>();
      sm90::pin(o);
      if (leader) sm90::mbarrier_arrive(kv_free + 8 * OWN);
      parity_own ^= 1;
    };
    const auto release_q = [&](int block) {
      if (block + 2 >= blocks && leader) {
        sm90::mbarrier_arrive(sm90::shared_address(&shared.q_free));
      }
    };

    float factor[2];
    if (SIDE == 0) {
      for (int block = 0; block < blocks; block += 2) {
        const KeyMask mask = key_mask(indices, block * KEYS, count, s_kv);
        score(block);
        sm90::wgmma_wait<0>();
        sm90::pin(s);
        release_q(block);
        softmax(s, probabilities, row, mask, scale_log2, factor);
        add_own(factor);
        if (block + 1 < blocks) {
          add_other();
          free_other();
        }
      }
    } else {
      int block = 1;
      for (; block < blocks; block += 2) {
        const KeyMask mask = key_mask(indices, block * KEYS, count, s_kv);
        score(block);
        add_other();  // runs under the softmax
        sm90::wgmma_wait<1>();
        sm90::pin(s);
        release_q(block);
        softmax(s, probabilities, row, mask, scale_log2, factor);
        free_other();
        add_own(factor);
      }
      if (block == blocks) {  // an odd number of blocks: the last one has no partner
        add_other();
        free_other();
      }
    }
    if (blocks > 0) parity_q ^= 1;
    finish<SIDE>(p, shared, o, row, query, head_group, buffer);
    buffer ^= 1;
  }
}

// Gather one half [64, 256] of a key block; eight threads copy 128 bytes of a row at a time.
__device__ __forceinline__ void gather_half(uint32_t target, const bf16* const (&rows)[4],
                                            uint32_t valid, int first_tile) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      sm90::copy16_or_zero(target + tile * TILE_BYTES + i * 2048, rows[i] + (first_tile + tile) * 64,
                           (valid >> i) & 1);
    }
  }
}

__device__ __forceinline__ void produce(const Params& p, Shared& shared) {
  const int thread = threadIdx.x % WARPGROUP;
  const int line = thread / 8, chunk = thread % 8;
  const uint32_t offset = line * 128 + ((chunk ^ (line % 8)) << 4);
  const uint32_t q_target = sm90::shared_address(shared.q) + offset;
  const uint32_t kv_target = sm90::shared_address(shared.kv) + offset;
  const uint32_t kv_ready = sm90::shared_address(shared.kv_ready);
  const uint32_t kv_free = sm90::shared_address(shared.kv_free);
  uint32_t parity_q = 1, parity = 3;  // parity: one bit per side

  for (int work = blockIdx.x; work < p.num_works; work += gridDim.x) {
    const int query = work / p.head_groups, head_group = work % p.head_groups;
    const int count = num_keys(p, query);
    const int blocks = (count + KEYS - 1) / KEYS;
    if (blocks == 0) continue;
    const int* indices = p.indices + query * p.indices_row_stride;
    int next[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = line + 16 * i;
      next[i] = at < count ? __ldg(indices + at) : -1;
    }

    sm90::mbarrier_wait(sm90::shared_address(&shared.q_free), parity_q);
    parity_q ^= 1;
    {
      const bf16* rows[4];
      uint32_t valid = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = head_group * HEADS + line + 16 * i;
        if (head < p.h_q) valid |= 1u << i;
        rows[i] = p.q + query * p.q_row_stride + (head < p.h_q ? head : 0) * p.q_head_stride +
                  chunk * 8;
      }
      gather_half(q_target, rows, valid, 0);
      gather_half(q_target + HALF_BYTES, rows, valid, 4);
      sm90::mbarrier_arrive_after_copies(sm90::shared_address(&shared.q_ready));
    }

    for (int block = 0; block < blocks; ++block) {
      const bf16* rows[4];
      uint32_t valid = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool inside = next[i] >= 0 && next[i] < p.s_kv;
        if (inside) valid |= 1u << i;
        rows[i] = p.kv + (inside ? next[i] : 0) * p.kv_row_stride + chunk * 8;
        const int at = (block + 1) * KEYS + line + 16 * i;
        next[i] = at < count ? __ldg(indices + at) : -1;
      }
      const int side = block & 1;
      // The half its scorer keeps is free first: left of even blocks, right of odd ones.
#pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        const int half = turn ^ side;
        const int at = 2 * side + half;
        sm90::mbarrier_wait(kv_free + 8 * at, (parity >> side) & 1);
        gather_half(kv_target + at * HALF_BYTES, rows, valid, 4 * half);
        sm90::mbarrier_arrive_after_copies(kv_ready + 8 * at);
      }
      parity ^= 1u << side;
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)
    sparse_mla_prefill_kernel(const __grid_constant__ Params p) {
  extern __shared__ uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(
      (reinterpret_cast<uintptr_t>(raw) + 1023) & ~static_cast<uintptr_t>(1023));
  if (threadIdx.x == 0) {
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
