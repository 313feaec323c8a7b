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
constexpr int CONSUMER_REGISTERS = 232;
constexpr int PRODUCER_REGISTERS = 40;

struct Shared {
  alignas(1024) uint8_t q[8 * TILE_BYTES];
  alignas(1024) uint8_t kv[4][HALF_BYTES];       // index 2 * (key block % 2) + half
  // Probabilities a warpgroup hands over. Those of even blocks have two places: the right side may
  // still be reading one while the left side, already served by the right one, writes the next.
  alignas(1024) uint8_t p[3][TILE_BYTES];
  float reference[2][HEADS];                     // the maximum p is relative to, in log2 units
  float sum[2][2][HEADS];
  float top[2][2][HEADS];
  alignas(8) uint64_t q_ready;
  uint64_t q_free;
  uint64_t kv_ready[4];
  uint64_t kv_free[4];
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "the wrapper asks for too little shared memory");

enum NamedBarrier { FIRST_P_READY = 1, SECOND_P_READY = 2, TOTALS_READY = 3 };

struct Row {            // what a thread knows about its two rows, r and r + 8
  float reference[2];   // output, sum and probabilities are relative to it (log2 units)
  float sum[2];         // of the blocks this warpgroup scored, this thread's columns
  float top[2];         // largest logit seen by this warpgroup, before scaling
};

// One (query, group of heads). There is always one key block at least, all masked if need be.
struct Work {
  int query, head_group;
  int count;    // positions of the index row that count
  int blocks;   // key blocks to go through
  const int* indices;
};

__device__ __forceinline__ Work describe(const Params& p, int number) {
  Work work;
  work.query = number;
  work.head_group = 0;
  if (p.head_groups > 1) {
    work.query = number / p.head_groups;
    work.head_group = number % p.head_groups;
  }
  work.count = p.topk;
  if (p.topk_length != nullptr) {
    work.count = max(0, min(p.topk, __ldg(p.topk_length + work.query)));
  }
  work.blocks = max(1, (work.count + KEYS - 1) / KEYS);
  work.indices = p.indices + work.query * p.indices_row_stride;
  return work;
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

// Validity of 64 keys as bits. The loads are issued long before the bits are needed.
struct KeyMask {
  uint32_t low, high;
};

struct KeyIndices {
  int low, high;  // this lane's keys of the block: lane and lane + 32
};

__device__ __forceinline__ KeyIndices load_keys(const int* indices, int first, int count) {
  const int at = first + threadIdx.x % 32;
  return {sm90::load_or(indices + at, at < count, -1),
          sm90::load_or(indices + at + 32, at + 32 < count, -1)};
}

__device__ __forceinline__ KeyMask key_mask(const KeyIndices& keys, int s_kv) {
  return {__ballot_sync(0xffffffffu, keys.low >= 0 && keys.low < s_kv),
          __ballot_sync(0xffffffffu, keys.high >= 0 && keys.high < s_kv)};
}

// Mask logits s [64 keys] of this thread's rows and give the largest of each row.
__device__ __forceinline__ void mask_and_top(float (&s)[32], float (&top)[2], Row& row,
                                             const KeyMask& mask) {
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
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = fmaxf(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int j = 1; j < 8; ++j) {
      top[i] = fmaxf(top[i], fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    }
    top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 1));
    top[i] = fmaxf(top[i], __shfl_xor_sync(0xffffffffu, top[i], 2));
    row.top[i] = fmaxf(row.top[i], top[i]);
  }
}

// Turn masked logits into probabilities, as bf16 pairs p, relative to the (possibly raised)
// reference; `factor` is what the output must be multiplied with.
__device__ __forceinline__ void softmax(const float (&s)[32], const float (&top)[2],
                                        uint32_t (&p)[16], Row& row, float scale_log2,
                                        float (&factor)[2]) {
  float offset[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float scaled = top[i] * scale_log2;
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

// Logits of 64 keys over `TILES` groups of 64 dimensions, added to s (or replacing it).
template <int TILES>
__device__ __forceinline__ void score_tiles(float (&s)[32], uint64_t q_tile, uint64_t k_tile,
                                            bool first) {
#pragma unroll
  for (int tile = 0; tile < TILES; ++tile) {
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

// Normalise and write this warpgroup's half of the output, and from the left one the statistics.
// `stage` is a tile nobody reads at this point; each warp passes its 16 rows through its part of it,
// 64 columns at a time, so that eight lanes write 128 contiguous bytes of a row.
template <int SIDE>
__device__ __forceinline__ void finish(const Params& p, Shared& shared, const float (&o)[128],
                                       Row& row, const Work& work, uint32_t stage, int buffer) {
  const int lane = threadIdx.x % 32;
  const int first = 16 * ((threadIdx.x % WARPGROUP) / 32);
  const int r = first + lane / 4;
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
  const int64_t line = static_cast<int64_t>(work.query) * p.h_q + work.head_group * HEADS;
  const int rows = p.h_q - work.head_group * HEADS;  // heads from here on that exist
  float inverse[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = r + 8 * i;
    const float sum = shared.sum[buffer][0][at] + shared.sum[buffer][1][at];
    float total = sum;
    if (p.sink != nullptr && at < rows) {
      const float sink = __ldg(p.sink + work.head_group * HEADS + at);
      total += sm90::exp2_fast(sink * sm90::LOG2E - row.reference[i]);
    }
    inverse[i] = sum > 0.0f ? 1.0f / total : 0.0f;
    if (SIDE == 0 && lane % 4 == 0 && at < rows) {
      const float top = fmaxf(shared.top[buffer][0][at], shared.top[buffer][1][at]);
      p.max_logits[line + at] = top * p.sm_scale;
      p.lse[line + at] = sum > 0.0f ? row.reference[i] * sm90::LN2 + logf(sum) : INFINITY;
    }
  }
  const uint32_t put = stage + (first + lane % 16) * 128;
  const uint32_t get = stage + (first + lane / 8) * 128;
  bf16* target = p.out + (line + first + lane / 8) * DIM + SIDE * (DIM / 2) + (lane % 8) * 8;
#pragma unroll
  for (int part = 0; part < 4; ++part) {
    __syncwarp();  // the previous part has been read
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 32 * part + 8 * k + 2 * i;
        w[i] = sm90::pack_bf16(o[at] * inverse[i % 2], o[at + 1] * inverse[i % 2]);
      }
      sm90::store_matrix_x4(put + (((2 * k + lane / 16) ^ (lane % 8)) << 4), w);
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = 4 * i + lane / 8;
      const uint4 piece = sm90::load_shared16(get + i * 512 + (((lane % 8) ^ (at % 8)) << 4));
      if (first + at < rows) {
        *reinterpret_cast<uint4*>(target + i * 4 * DIM + part * 64) = piece;
      }
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
  const uint32_t q_ready = sm90::shared_address(&shared.q_ready);
  const uint32_t q_free = sm90::shared_address(&shared.q_free);
  const uint64_t q_tile = sm90::swizzled_tile(sm90::shared_address(shared.q), 0, 1024);
  const uint64_t k_tile = sm90::swizzled_tile(sm90::shared_address(shared.kv), 0, 1024);
  const uint64_t v_tile = sm90::swizzled_tile(sm90::shared_address(shared.kv), TILE_BYTES, 1024);
  // Tiles 0 and 1 hold probabilities of even blocks by turns, tile 2 those of odd blocks.
  const uint64_t p_tile = sm90::swizzled_tile(sm90::shared_address(shared.p), 0, 1024);
  const uint32_t own_p = sm90::shared_address(shared.p);
  constexpr uint64_t HALF_STEP = HALF_BYTES >> 4;
  constexpr int OWN = 2 * SIDE + SIDE;             // own key block, own half
  constexpr int OWN_FAR = 2 * SIDE + (1 - SIDE);   // own key block, the other's half
  constexpr int OTHER = 2 * (1 - SIDE) + SIDE;     // the other's key block, own half

  float o[128], s[32], top[2], factor[2] = {1.0f, 1.0f};
  uint32_t probabilities[16];
  uint32_t parity_own = 0, parity_other = 0, parity_q = 0;
  int buffer = 0, turn = 0;
  Row row;
  KeyIndices keys;
  Work work = describe(p, blockIdx.x);

  const auto free_other = [&] {
    if (leader) sm90::mbarrier_arrive(kv_free + 8 * OTHER);
  };
  const auto end_other = [&] {
    sm90::wgmma_wait<0>();
    sm90::pin(o);
    free_other();
  };
  // Start the logits of one own key block. If products with the other's block are `running`, free
  // what they read once a little of this is queued behind them.
  const auto start_score = [&](bool running) {
    bool owing = running;
    uint64_t q_base = q_tile, k_base = k_tile;
    sm90::pin(q_base);
    sm90::pin(k_base);
    const uint64_t q_near = q_base + SIDE * HALF_STEP, k_near = k_base + OWN * HALF_STEP;
    const uint64_t q_far = q_base + (1 - SIDE) * HALF_STEP, k_far = k_base + OWN_FAR * HALF_STEP;
    constexpr uint64_t TILE_STEP = TILE_BYTES >> 4;
    if (running && !(sm90::mbarrier_test(kv_ready + 8 * OWN, parity_own) &&
                     sm90::mbarrier_test(kv_ready + 8 * OWN_FAR, parity_own))) {
      end_other();  // nothing to queue yet: do not hold back the next copies
      owing = false;
    }
    sm90::mbarrier_wait(kv_ready + 8 * OWN, parity_own);
    sm90::mbarrier_wait(kv_ready + 8 * OWN_FAR, parity_own);
    sm90::fence_async_proxy();
    sm90::pin(s);
    sm90::wgmma_fence();
    score_tiles<1>(s, q_near, k_near, true);
    if (running) {
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      sm90::pin(o);
      if (owing) free_other();
    }
    score_tiles<3>(s, q_near + TILE_STEP, k_near + TILE_STEP, false);
    score_tiles<4>(s, q_far, k_far, false);
    sm90::wgmma_commit();
  };
  const auto end_score = [&] {
    sm90::wgmma_wait<0>();
    sm90::pin(s);
  };
  const auto look_at_scores = [&](int block) {
    if (block + 2 >= work.blocks && leader) sm90::mbarrier_arrive(q_free);
    mask_and_top(s, top, row, key_mask(keys, s_kv));
    keys = load_keys(work.indices, (block + 2) * KEYS, work.count);
  };
  const auto start_other = [&] {  // leaves the products with the other's key block in flight
    sm90::mbarrier_wait(kv_ready + 8 * OTHER, parity_other);
    sm90::fence_async_proxy();
    parity_other ^= 1;
    sm90::named_sync<SIDE == 0 ? SECOND_P_READY : FIRST_P_READY, CONSUMERS>();
    take_reference(o, row, shared.reference[1 - SIDE]);
    sm90::pin(o);
    sm90::wgmma_fence();
    const int tile = SIDE == 0 ? 2 : turn;
    add_other_values(o, p_tile + tile * (TILE_BYTES >> 4), v_tile + OTHER * HALF_STEP);
    sm90::wgmma_commit();
  };
  const auto give = [&] {
    const int tile = SIDE == 0 ? turn : 2;
    hand_over(own_p + tile * TILE_BYTES, shared.reference[SIDE], probabilities, row);
    sm90::named_arrive<SIDE == 0 ? FIRST_P_READY : SECOND_P_READY, CONSUMERS>();
  };
  const auto add_own = [&] {
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
  const auto begin = [&] {
    row = Row{{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
  };
  const auto wait_q = [&] {
    sm90::mbarrier_wait(q_ready, parity_q);
    parity_q ^= 1;
  };

  if (SIDE == 0) {
    keys = load_keys(work.indices, 0, work.count);
    wait_q();
    start_score(false);
    end_score();
    for (int number = blockIdx.x;;) {
      begin();
      for (int block = 0;; block += 2) {
        look_at_scores(block);
        softmax(s, top, probabilities, row, scale_log2, factor);
        give();
        add_own();
        turn ^= 1;
        if (block + 1 >= work.blocks) break;
        start_other();
        if (block + 2 >= work.blocks) {
          end_other();
          break;
        }
        start_score(true);  // the products with the other's block run under it
        end_score();
      }
      number += gridDim.x;
      const Work done = work;
      const uint32_t stage = own_p + turn * TILE_BYTES;
      if (number >= p.num_works) {
        finish<SIDE>(p, shared, o, row, done, stage, buffer);
        break;
      }
      work = describe(p, number);
      keys = load_keys(work.indices, 0, work.count);
      wait_q();
      start_score(false);  // runs while the finished output is written
      finish<SIDE>(p, shared, o, row, done, stage, buffer);
      end_score();
      buffer ^= 1;
    }
  } else {
    for (int number = blockIdx.x;;) {
      keys = load_keys(work.indices, KEYS, work.count);
      begin();
      wait_q();
      if (work.blocks == 1 && leader) sm90::mbarrier_arrive(q_free);
      for (int block = 1; block < work.blocks; block += 2) {
        start_score(false);
        end_score();
        look_at_scores(block);
        start_other();
        softmax(s, top, probabilities, row, scale_log2, factor);  // the products run under it
        give();
        end_other();
        add_own();
        turn ^= 1;
      }
      if (work.blocks % 2 == 1) {  // the last block has no partner here
        start_other();
        end_other();
        turn ^= 1;
      }
      finish<SIDE>(p, shared, o, row, work, own_p + 2 * TILE_BYTES, buffer);
      buffer ^= 1;
      number += gridDim.x;
      if (number >= p.num_works) break;
      work = describe(p, number);
    }
  }
}

// Gather one half [64, 256] of a key block; eight threads copy 128 bytes of a row at a time.
__device__ __forceinline__ void gather_half(uint32_t target, const char* const (&rows)[4],
                                            uint32_t valid, int half) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      sm90::copy16_or_zero(target + tile * TILE_BYTES + i * 2048, rows[i] + half * 512 + tile * 128,
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
  const char* kv = reinterpret_cast<const char*>(p.kv) + chunk * 16;
  const int64_t kv_row_bytes = 2 * p.kv_row_stride;
  const int s_kv = p.s_kv;
  uint32_t parity_q = 1, parity = 3;  // parity: one bit per side

  for (int number = blockIdx.x; number < p.num_works; number += gridDim.x) {
    const Work work = describe(p, number);
    const int count = work.count, blocks = work.blocks;
    const int* indices = work.indices + line;
    int next[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) next[i] = sm90::load_or(indices + 16 * i, line + 16 * i < count, -1);

    sm90::mbarrier_wait(sm90::shared_address(&shared.q_free), parity_q);
    parity_q ^= 1;
    {
      const char* rows[4];
      uint32_t valid = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = work.head_group * HEADS + line + 16 * i;
        if (head < p.h_q) valid |= 1u << i;
        rows[i] = reinterpret_cast<const char*>(p.q + work.query * p.q_row_stride +
                                                (head < p.h_q ? head : 0) * p.q_head_stride) +
                  chunk * 16;
      }
      gather_half(q_target, rows, valid, 0);
      gather_half(q_target + HALF_BYTES, rows, valid, 1);
      sm90::mbarrier_arrive_after_copies(sm90::shared_address(&shared.q_ready));
    }

    // Two blocks a turn, so that buffers and barriers have constant addresses.
    for (int first = 0; first < blocks; first += 2) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int block = first + side;
        if (block >= blocks) break;
        const char* rows[4];
        uint32_t valid = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool inside = next[i] >= 0 && next[i] < s_kv;
          if (inside) valid |= 1u << i;
          rows[i] = kv + (inside ? next[i] : 0) * kv_row_bytes;
          sm90::pin(rows[i]);  // addresses before the wait, copies right after it
          const int at = (block + 1) * KEYS + 16 * i;
          next[i] = sm90::load_or(indices + at, line + at < count, -1);
        }
        // The half its scorer keeps is free first: left of even blocks, right of odd ones.
#pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const int half = turn ^ side;
          const int at = 2 * side + half;
          sm90::mbarrier_wait(kv_free + 8 * at, (parity >> side) & 1);
          gather_half(kv_target + at * HALF_BYTES, rows, valid, half);
          sm90::mbarrier_arrive_after_copies(kv_ready + 8 * at);
        }
        parity ^= 1u << side;
      }
    }
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(3 * WARPGROUP, 1)
    sparse_mla_prefill_kernel(const __grid_constant__ Params p) {
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
