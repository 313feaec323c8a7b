// Paged sparse MLA decode: 64 heads of one query against listed records of one or two caches.
//
// Four warpgroups share one block per multiprocessor. Warpgroups 2 and 3 fetch FP8 and FP4 records
// and expand them to bf16 (sparse_mla_decode_keys.cuh). Warpgroup 0 scores a block of 64 keys,
// keeps the softmax and multiplies the probabilities, still in registers, with channels 0-255.
// Warpgroup 1 takes them from shared memory and does channels 256-511. The running maximum that the
// accumulators are relative to only moves when it has grown by more than 2^RESCALE_AFTER.
#include "sm90.cuh"
#include "sm90_wgmma.cuh"
#include "sparse_mla_decode_keys.cuh"
#include "sparse_mla_decode_plan.cuh"
#include "sparse_mla_decode_wgmma.cuh"

namespace decode {

static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "sparse_mla_decode_kernel.py: SHARED_BYTES");
static_assert(sizeof(Params) == EXPECTED_PARAMS_BYTES, "sparse_mla_decode_kernel.py: Params");

constexpr float RESCALE_AFTER = 8.0f;  // log2 units; bf16 probabilities stay below 2^8
constexpr float LOWEST = -1e30f;       // a maximum before any key
constexpr int THREADS = 512;
// Per thread and warpgroup; 192 + 160 + 2 * 80 is what one multiprocessor has.
constexpr int SCORING_REGISTERS = 192;
constexpr int FOLLOWING_REGISTERS = 160;
constexpr int PRODUCER_REGISTERS = 80;
constexpr int CONSUMERS = 256;

// Load 64 heads of a query into eight swizzled tiles, channels in the order the keys use.
__device__ __forceinline__ void load_queries(const Params& p, const Piece& piece, uint32_t shared,
                                             int thread) {
  const int batch = piece.row / p.queries;
  const int query = piece.row - batch * p.queries;
  const uint16_t* q = p.q + batch * p.q_batch_stride + query * p.q_query_stride +
                      static_cast<int64_t>(piece.group) * HEADS * p.q_head_stride;
#pragma unroll
  for (int i = 0; i < HEADS * HEAD_DIM / 8 / CONSUMERS; ++i) {
    const int head = (i * CONSUMERS + thread) >> 6;
    const int part = thread & 63;  // eight channels
    const uint4 v = load16(reinterpret_cast<uint64_t>(q + head * p.q_head_stride + part * 8), true);
    const int tile = (part >> 4) * 2 + (part & 1);
    const int chunk = (part & 15) >> 1;
    store16(shared + QUERY_AT + tile * TILE_BYTES + head * 128 + ((chunk ^ (head & 7)) << 4),
            __byte_perm(v.x, v.y, 0x5410), __byte_perm(v.x, v.y, 0x7632),
            __byte_perm(v.z, v.w, 0x5410), __byte_perm(v.z, v.w, 0x7632));
  }
  sm90::fence_async_proxy();
}

// Copy bytes from shared to global memory without a thread waiting for the stores.
__device__ __forceinline__ void copy_out(void* target, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target),
               "r"(source), "r"(bytes)
               : "memory");
}

// Write a warpgroup's 64 x 256 accumulators: bf16 output, or the fp32 partial of a split row. Each
// warp lays its 16 rows out in shared memory that held keys and lets the copy engine take them.
__device__ __forceinline__ void store_output(const Params& p, const Piece& piece, int number,
                                             float (&o)[2][64], const float* factors,
                                             uint32_t shared, int half, int thread) {
  const int lane = thread & 31;
  const int first_row = (thread >> 5) * 16;
  const int row = first_row + (lane >> 2);
  const bool partial = p.splits > 1;
  const uint32_t pitch = partial ? PARTIAL_PITCH : OUTPUT_PITCH;
  const uint32_t half_bytes = partial ? 1024 : 512;
  const uint32_t target = shared + KEYS_AT + row * pitch + half * half_bytes;
  if (partial) {
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const float* v = &o[j >> 4][4 * (j & 15)];
      const uint32_t at = target + j * 32 + (lane & 3) * 8;
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(v[0]), "f"(v[1]) : "memory");
      asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at + 8 * PARTIAL_PITCH), "f"(v[2]),
                   "f"(v[3])
                   : "memory");
    }
  } else {
    const float factor_a = factors[row];
    const float factor_b = factors[row + 8];
    // Accumulator pairs are channels (0, 2) and (1, 3) of four: neighbours swap one to hold a run.
    const uint32_t select = (lane & 1) ? 0x3276 : 0x5410;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const int channel = 128 * (j >> 4) + 16 * (j & 7) + 8 * ((j >> 3) & 1);
      const float* v = &o[j >> 4][4 * (j & 15)];
      const uint32_t a = sm90::pack_bf16(v[0] * factor_a, v[1] * factor_a);
      const uint32_t b = sm90::pack_bf16(v[2] * factor_b, v[3] * factor_b);
      const uint32_t other_a = __shfl_xor_sync(0xffffffffu, a, 1);
      const uint32_t other_b = __shfl_xor_sync(0xffffffffu, b, 1);
      const uint32_t at = target + channel * 2 + (lane & 3) * 4;
      store4(at, __byte_perm(a, other_a, select));
      store4(at + 8 * OUTPUT_PITCH, __byte_perm(b, other_b, select));
    }
  }
  sm90::fence_async_proxy();
  __syncwarp();
  if (lane < 16) {
    const int64_t to = partial ? static_cast<int64_t>(number) * HEADS
                               : static_cast<int64_t>(piece.row) * p.heads + piece.group * HEADS;
    uint8_t* out = partial ? reinterpret_cast<uint8_t*>(p.partial_out)
                           : reinterpret_cast<uint8_t*>(p.out);
    copy_out(out + ((to + first_row + lane) * 2 + half) * half_bytes,
             shared + KEYS_AT + (first_row + lane) * pitch + half * half_bytes, half_bytes);
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
  }
}

__device__ __forceinline__ void score_block(float (&s)[32], uint32_t shared, uint32_t stage) {
  const uint64_t queries = sm90::swizzled_tile(shared + QUERY_AT, 16, 1024);
  const uint64_t keys =
      sm90::swizzled_tile(shared + KEYS_AT + stage * 8 * TILE_BYTES, 16, 1024);
  sm90::pin(s);
  sm90::wgmma_fence();
#pragma unroll
  for (int step = 0; step < HEAD_DIM / 16; ++step) {
    const uint64_t offset = ((step >> 2) * TILE_BYTES + (step & 3) * 32) >> 4;
    sm90::wgmma_m64n64k16_kk(s, queries + offset, keys + offset, step > 0);
  }
  sm90::wgmma_commit();
}

// Start adding a block's probabilities times 256 of its channels.
__device__ __forceinline__ void multiply_block(float (&o)[2][64], uint32_t shared, uint32_t stage,
                                               int half, bool accumulate) {
  const uint64_t probabilities =
      sm90::swizzled_tile(shared + PROBABILITIES_AT + stage * TILE_BYTES, 16, 1024);
  const uint64_t values = sm90::swizzled_tile(
      shared + KEYS_AT + (stage * 8 + half * 4) * TILE_BYTES, TILE_BYTES, 1024);
  sm90::pin(o[0]);
  sm90::pin(o[1]);
  sm90::wgmma_fence();
#pragma unroll
  for (int step = 0; step < BLOCK_KEYS / 16; ++step) {
    const uint64_t a = probabilities + ((step * 32) >> 4);
    const uint64_t b = values + ((step * 16 * 128) >> 4);
    sm90::wgmma_m64n128k16_kn(o[0], a, b, accumulate || step > 0);
    sm90::wgmma_m64n128k16_kn(o[1], a, b + ((2 * TILE_BYTES) >> 4), accumulate || step > 0);
  }
  sm90::wgmma_commit();
}

__device__ __forceinline__ void scale_rows(float (&o)[2][64], float a, float b) {
#pragma unroll
  for (int j = 0; j < 128; ++j) o[j >> 6][j & 63] *= (j & 2) ? b : a;
}

struct RowState {
  float maximum = LOWEST;  // log2 units, what sum and accumulators are relative to
  float sum = 0.0f;        // of this lane's columns
};

// Turn the scores of one row (elements PART, PART + 1 of each four) into probabilities in place;
// return the factor that brings earlier sums to the new maximum.
template <int PART>
__device__ __forceinline__ float soften_row(float (&s)[32], RowState& state, float scale) {
  float highest = s[PART];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    highest = fmaxf(highest, fmaxf(s[4 * j + PART], s[4 * j + PART + 1]));
  }
  highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
  highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
  highest *= scale;
  float factor = 1.0f;
  if (highest > state.maximum + RESCALE_AFTER) {
    factor = sm90::exp2_fast(state.maximum - highest);
    state.maximum = highest;
  }
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      float& value = s[4 * j + PART + k];
      value = sm90::exp2_fast(fmaf(value, scale, -state.maximum));
      sum += value;
    }
  }
  state.sum = state.sum * factor + sum;
  return factor;
}

__device__ __forceinline__ float sum_of_four_lanes(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// Finish a row: its statistics, and the factor that turns accumulators into output.
__device__ __forceinline__ float finish_row(const Params& p, const Piece& piece, int number,
                                            int row, float maximum, float sum, bool writes) {
  if (p.splits > 1) {
    if (writes) p.partial_stats[number * HEADS + row] = make_float2(maximum, sum);
    return 1.0f;
  }
  const int head = piece.group * HEADS + row;
  const float sink = p.sink != nullptr ? __ldg(p.sink + head) : -INFINITY;
  const float total = sum + exp2f(fmaf(sink, sm90::LOG2E, -maximum));
  if (writes) {
    p.lse[static_cast<int64_t>(piece.row) * p.heads + head] =
        sum > 0.0f ? (maximum + log2f(sum)) * sm90::LN2 : INFINITY;
  }
  return sum > 0.0f ? KEY_UNIT / total : 0.0f;
}

__device__ __forceinline__ void scoring_warpgroup(const Params& p, uint8_t* memory,
                                                  uint32_t shared, int thread) {
  const int warp = thread >> 5;
  const int lane = thread & 31;
  const int row = warp * 16 + (lane >> 2);
  const float scale = p.scale_log2 * KEY_UNIT;
  float* rescale = reinterpret_cast<float*>(memory + RESCALE_AT);
  float* factors = reinterpret_cast<float*>(memory + FACTOR_AT);
  const uint32_t key_full = shared + BARRIERS_AT;
  const uint32_t key_empty = key_full + STAGES * 8;
  const uint32_t probability_full = key_empty + STAGES * 8;
  const uint32_t probability_empty = probability_full + STAGES * 8;
  uint32_t done = 0;
  float o[2][64];
  float s[32];
  const int number = blockIdx.x;
  const Piece piece = piece_of(p, number);
  load_queries(p, piece, shared, thread);
  sm90::named_sync<1, CONSUMERS>();
  const int blocks = piece.last - piece.first;
  RowState a, b;
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i >> 6][i & 63] = 0.0f;
  if (blocks > 0) {
    sm90::mbarrier_wait(key_full + (done % STAGES) * 8, (done / STAGES) & 1);
    score_block(s, shared, done % STAGES);
    sm90::wgmma_wait<0>();
  }
  for (int i = 0; i < blocks; ++i, ++done) {
    const uint32_t stage = done % STAGES;
    sm90::pin(s);
    const uint2 valid = *reinterpret_cast<const uint2*>(memory + VALID_AT + stage * 8);
    if ((valid.x & valid.y) != 0xffffffffu) {
      const uint32_t low = valid.x >> (2 * (lane & 3));
      const uint32_t high = valid.y >> (2 * (lane & 3));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint32_t bit = ((j < 4 ? low : high) >> (8 * (j & 3) + (k & 1))) & 1;
          if (bit == 0) s[4 * j + k] = -INFINITY;
        }
      }
    }
    const float factor_a = soften_row<0>(s, a, scale);
    const float factor_b = soften_row<2>(s, b, scale);
    sm90::mbarrier_wait(probability_empty + stage * 8, ((done / STAGES) & 1) ^ 1);
    const uint32_t target = shared + PROBABILITIES_AT + stage * TILE_BYTES + row * 128;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const uint32_t column = ((j ^ (row & 7)) << 4) + (lane & 3) * 4;
      store4(target + column, sm90::pack_bf16(s[4 * j], s[4 * j + 1]));
      store4(target + 8 * 128 + column, sm90::pack_bf16(s[4 * j + 2], s[4 * j + 3]));
    }
    if ((lane & 3) == 0) {
      rescale[stage * HEADS + row] = factor_a;
      rescale[stage * HEADS + row + 8] = factor_b;
    }
    sm90::fence_async_proxy();
    __syncwarp();
    if (lane == 0) sm90::mbarrier_arrive(probability_full + stage * 8);
    if (i > 0 && __any_sync(0xffffffffu, factor_a != 1.0f || factor_b != 1.0f)) {
      scale_rows(o, factor_a, factor_b);
    }
    sm90::named_sync<3, 128>();  // the tile is complete
    multiply_block(o, shared, stage, 0, i > 0);
    if (i + 1 < blocks) {
      const uint32_t next = done + 1;
      sm90::mbarrier_wait(key_full + (next % STAGES) * 8, (next / STAGES) & 1);
      score_block(s, shared, next % STAGES);
      sm90::wgmma_wait<1>();
      if (lane == 0) sm90::mbarrier_arrive(key_empty + stage * 8);
      sm90::wgmma_wait<0>();
    } else {
      sm90::wgmma_wait<0>();
      if (lane == 0) sm90::mbarrier_arrive(key_empty + stage * 8);
    }
  }
  const float sum_a = sum_of_four_lanes(a.sum);
  const float sum_b = sum_of_four_lanes(b.sum);
  const bool writes = (lane & 3) == 0;
  const float out_a = finish_row(p, piece, number, row, a.maximum, sum_a, writes);
  const float out_b = finish_row(p, piece, number, row + 8, b.maximum, sum_b, writes);
  if (writes) {
    factors[row] = out_a;
    factors[row + 8] = out_b;
  }
  sm90::named_sync<2, CONSUMERS>();  // factors are written, queries no longer read
  sm90::pin(o[0]);
  sm90::pin(o[1]);
  store_output(p, piece, number, o, factors, shared, 0, thread);
}

__device__ __forceinline__ void following_warpgroup(const Params& p, uint8_t* memory,
                                                    uint32_t shared, int thread) {
  const int warp = thread >> 5;
  const int lane = thread & 31;
  const int row = warp * 16 + (lane >> 2);
  const float* rescale = reinterpret_cast<const float*>(memory + RESCALE_AT);
  const float* factors = reinterpret_cast<const float*>(memory + FACTOR_AT);
  const uint32_t key_full = shared + BARRIERS_AT;
  const uint32_t key_empty = key_full + STAGES * 8;
  const uint32_t probability_full = key_empty + STAGES * 8;
  const uint32_t probability_empty = probability_full + STAGES * 8;
  uint32_t done = 0;
  float o[2][64];
  const int number = blockIdx.x;
  const Piece piece = piece_of(p, number);
  load_queries(p, piece, shared, thread + 128);
  sm90::named_sync<1, CONSUMERS>();
  const int blocks = piece.last - piece.first;
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i >> 6][i & 63] = 0.0f;
  for (int i = 0; i < blocks; ++i, ++done) {
    const uint32_t stage = done % STAGES;
    const uint32_t parity = (done / STAGES) & 1;
    sm90::mbarrier_wait(key_full + stage * 8, parity);
    sm90::mbarrier_wait(probability_full + stage * 8, parity);
    const float factor_a = rescale[stage * HEADS + row];
    const float factor_b = rescale[stage * HEADS + row + 8];
    if (i > 0 && __any_sync(0xffffffffu, factor_a != 1.0f || factor_b != 1.0f)) {
      scale_rows(o, factor_a, factor_b);
    }
    multiply_block(o, shared, stage, 1, i > 0);
    sm90::wgmma_wait<0>();
    if (lane == 0) {
      sm90::mbarrier_arrive(key_empty + stage * 8);
      sm90::mbarrier_arrive(probability_empty + stage * 8);
    }
  }
  sm90::named_sync<2, CONSUMERS>();
  sm90::pin(o[0]);
  sm90::pin(o[1]);
  store_output(p, piece, number, o, factors, shared, 1, thread);
}

}  // namespace decode

extern "C" __global__ void __launch_bounds__(decode::THREADS, 1)
    sparse_mla_decode(const __grid_constant__ decode::Params p) {
  using namespace decode;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = sm90::shared_address(memory);
  const int group = threadIdx.x >> 7;
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      const uint32_t barrier = shared + BARRIERS_AT + i * 8;
      sm90::mbarrier_init(barrier, 8);                    // keys full: warps that expand
      sm90::mbarrier_init(barrier + STAGES * 8, 8);       // keys empty: warps that multiply
      sm90::mbarrier_init(barrier + 2 * STAGES * 8, 4);   // probabilities full
      sm90::mbarrier_init(barrier + 3 * STAGES * 8, 4);   // probabilities empty
    }
    sm90::mbarrier_init_fence();
  }
  __syncthreads();
  asm volatile("griddepcontrol.launch_dependents;");
  if (group == 0) {
    sm90::registers_grow<SCORING_REGISTERS>();
    scoring_warpgroup(p, memory, shared, threadIdx.x);
  } else if (group == 1) {
    sm90::registers_grow<FOLLOWING_REGISTERS>();
    following_warpgroup(p, memory, shared, threadIdx.x - 128);
  } else {
    sm90::registers_shrink<PRODUCER_REGISTERS>();
    const int thread = threadIdx.x - 256;
    KeyProducer<EXTRA_KIND> producer(p, memory, thread >> 5, thread & 31);
    producer.run();
  }
}

// Add up the pieces of split rows. One block per row and head, four channels per thread.
extern "C" __global__ void __launch_bounds__(128)
    sparse_mla_decode_combine(const __grid_constant__ decode::Params p) {
  using namespace decode;
  const int row = blockIdx.x;
  const int head = blockIdx.y;
  const int group = head / HEADS;
  const int local = head % HEADS;
  const int first = row * p.splits * p.head_groups + group;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float maximum = LOWEST;
  for (int i = 0; i < p.splits; ++i) {
    maximum = fmaxf(maximum, p.partial_stats[(first + i * p.head_groups) * HEADS + local].x);
  }
  float sum = 0.0f;
  float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int i = 0; i < p.splits; ++i) {
    const int number = first + i * p.head_groups;
    const float2 stats = p.partial_stats[number * HEADS + local];
    const float weight = exp2f(stats.x - maximum);
    if (stats.y > 0.0f) {
      const float4 part = __ldcs(reinterpret_cast<const float4*>(
          p.partial_out + (static_cast<int64_t>(number) * HEADS + local) * HEAD_DIM) + threadIdx.x);
      sum += weight * stats.y;
      total.x += weight * part.x;
      total.y += weight * part.y;
      total.z += weight * part.z;
      total.w += weight * part.w;
    }
  }
  const float sink = p.sink != nullptr ? __ldg(p.sink + head) : -INFINITY;
  const float denominator = sum + exp2f(fmaf(sink, sm90::LOG2E, -maximum));
  const float factor = sum > 0.0f ? KEY_UNIT / denominator : 0.0f;
  const int64_t at = static_cast<int64_t>(row) * p.heads + head;
  // Four positions 4 threadIdx.x ... are channels 0 2 1 3 of a run of four.
  const int tile = threadIdx.x >> 4;
  const int in_tile = threadIdx.x & 15;
  const int channel = (tile >> 1) * 128 + (in_tile >> 1) * 16 + (tile & 1) * 8 + (in_tile & 1) * 4;
  *reinterpret_cast<uint2*>(p.out + at * HEAD_DIM + channel) =
      make_uint2(sm90::pack_bf16(total.x * factor, total.z * factor),
                 sm90::pack_bf16(total.y * factor, total.w * factor));
  if (threadIdx.x == 0) {
    p.lse[at] = sum > 0.0f ? (maximum + log2f(sum)) * sm90::LN2 : INFINITY;
  }
}
