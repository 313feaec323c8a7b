// Paged sparse MLA decode: 64 heads of one query against listed records of one or two caches.
//
// Four warpgroups share one block per multiprocessor. Warpgroups 2 and 3 fetch FP8 and FP4 records
// and expand them to bf16 (sparse_mla_decode_keys.cuh). Warpgroups 0 and 1 score alternate blocks of
// 64 keys, so that one's softmax runs beside the other's products, and hand each other the
// probabilities: each multiplies all of them with its half of the channels. The running maximum that
// the accumulators are relative to moves only once it has grown by RESCALE_AFTER.
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
constexpr int CONSUMERS = 256;
// Per thread; twice either is what one multiprocessor has.
constexpr int CONSUMER_REGISTERS = 192;
constexpr int PRODUCER_REGISTERS = 64;

// Load 64 heads of a query into eight swizzled tiles, channels in the order the keys use.
__device__ __forceinline__ void load_queries(const Params& p, const Piece& piece, uint32_t shared,
                                             int thread) {
  constexpr int LOADS = HEADS * HEAD_DIM / 8 / CONSUMERS;
  const int head = thread >> 6;  // and every fourth after it
  const int part = thread & 63;  // eight channels
  const uint16_t* q = p.q + piece.batch * p.q_batch_stride + piece.query * p.q_query_stride +
                      (piece.group * HEADS + head) * p.q_head_stride + part * 8;
  uint4 v[LOADS];
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    v[i] = __ldg(reinterpret_cast<const uint4*>(q));
    q += 4 * p.q_head_stride;
  }
  const int tile = (part >> 4) * 2 + (part & 1);
  const int chunk = (part & 15) >> 1;
  const uint32_t target = shared + QUERY_AT + tile * TILE_BYTES + head * 128;
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
    store16(target + i * 4 * 128 + ((chunk ^ ((head + 4 * i) & 7)) << 4),
            __byte_perm(v[i].x, v[i].y, 0x5410), __byte_perm(v[i].x, v[i].y, 0x7632),
            __byte_perm(v[i].z, v[i].w, 0x5410), __byte_perm(v[i].z, v[i].w, 0x7632));
  }
  sm90::fence_async_proxy();
}

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

// Write a warpgroup's 64 x 256 accumulators: bf16 output, or the fp32 partial of a split row. Each
// warp lays its 16 rows out in shared memory that held keys and copies them in whole lines.
__device__ __forceinline__ void store_output(const Params& p, const Piece& piece, int64_t number,
                                             float (&o)[2][64], float factor_a,
                                             float factor_b, uint32_t shared, int half,
                                             int thread) {
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
  __syncwarp();
  const int64_t to = partial ? number * HEADS
                             : static_cast<int64_t>(piece.row) * p.heads + piece.group * HEADS;
  uint8_t* out = partial ? reinterpret_cast<uint8_t*>(p.partial_out)
                         : reinterpret_cast<uint8_t*>(p.out);
  out += ((to + first_row) * 2 + half) * half_bytes + lane * 16;
  uint32_t source = shared + KEYS_AT + first_row * pitch + half * half_bytes + lane * 16;
#pragma unroll 4
  for (int i = 0; i < 16; ++i) {
    *reinterpret_cast<uint4*>(out) = load_shared16(source);
    if (partial) *reinterpret_cast<uint4*>(out + 512) = load_shared16(source + 512);
    out += 2 * half_bytes;
    source += pitch;
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

// Start adding a block's probabilities times 256 of its channels. The probabilities lie by parity.
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

__device__ __forceinline__ void clear(float (&o)[2][64]) {
#pragma unroll
  for (int i = 0; i < 128; ++i) o[i >> 6][i & 63] = 0.0f;
}

__device__ __forceinline__ void scale_rows(float (&o)[2][64], float a, float b) {
#pragma unroll
  for (int j = 0; j < 128; ++j) o[j >> 6][j & 63] *= (j & 2) ? b : a;
}

struct RowState {
  float maximum = LOWEST;  // log2 units, what sum and accumulators are relative to
  float sum = 0.0f;        // of this lane's columns in the blocks this warpgroup scored
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
__device__ __forceinline__ float finish_row(const Params& p, const Piece& piece, int64_t number,
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

// Turn a block's scores into probabilities where the other warpgroup finds them, with what happened
// to the running maximum; the factors are for its accumulators.
__device__ __forceinline__ void soften_block(float (&s)[32], RowState& a, RowState& b,
                                             float& factor_a, float& factor_b, float scale,
                                             uint8_t* memory, uint32_t shared, uint32_t i,
                                             int thread) {
  const int lane = thread & 31;
  const int warp_row = (thread >> 5) * 16;
  const uint32_t stage = i % STAGES;
  const volatile uint32_t* valid =
      reinterpret_cast<const volatile uint32_t*>(memory + VALID_AT + stage * 8);
  const uint32_t valid_low = valid[0];
  const uint32_t valid_high = valid[1];
  if ((valid_low & valid_high) != 0xffffffffu) {
    const uint32_t low = valid_low >> (2 * (lane & 3));
    const uint32_t high = valid_high >> (2 * (lane & 3));
#pragma unroll
    for (int j = 0; j < 32; ++j) {
      const uint32_t bit = 1u << (8 * ((j >> 2) & 3) + (j & 1));
      if (!((j < 16 ? low : high) & bit)) s[j] = -INFINITY;
    }
  }
  factor_a = soften_row<0>(s, a, scale);
  factor_b = soften_row<2>(s, b, scale);
  sm90::mbarrier_wait(shared + PROBABILITIES_EMPTY_AT + stage * 8, ((i / 2) & 1) ^ 1);
  // This lane's row in the four 8 x 8 matrices it stores at once: rows 0-7 and 8-15 of two chunks.
  const uint32_t target = shared + PROBABILITIES_AT + stage * TILE_BYTES +
                          (warp_row + ((lane >> 3) & 1) * 8 + (lane & 7)) * 128;
#pragma unroll
  for (int j = 0; j < 8; j += 2) {
    uint32_t words[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = sm90::pack_bf16(s[4 * j + 2 * k], s[4 * j + 2 * k + 1]);
    sm90::store_matrix_x4(target + (((j + (lane >> 4)) ^ (lane & 7)) << 4), words);
  }
  if ((lane & 3) == 0) {
    const int row = warp_row + (lane >> 2);
    float* rescale = reinterpret_cast<float*>(memory + RESCALE_AT) + stage * HEADS + row;
    float* maximum = reinterpret_cast<float*>(memory + MAXIMUM_AT) + stage * HEADS + row;
    rescale[0] = factor_a;
    rescale[8] = factor_b;
    maximum[0] = a.maximum;
    maximum[8] = b.maximum;
  }
  sm90::fence_async_proxy();
  __syncwarp();
  if (lane == 0) sm90::mbarrier_arrive(shared + PROBABILITIES_FULL_AT + stage * 8);
}

__device__ __forceinline__ void rescale_output(float (&o)[2][64], float factor_a, float factor_b) {
  if (__any_sync(0xffffffffu, factor_a != 1.0f || factor_b != 1.0f)) {
    scale_rows(o, factor_a, factor_b);
  }
}

// Let the other warpgroup's last block go: its stage of keys and its probabilities.
__device__ __forceinline__ void release(uint32_t shared, int other, int lane) {
  if (lane != 0) return;
  sm90::mbarrier_arrive(shared + KEYS_EMPTY_AT + other * 8);
  sm90::mbarrier_arrive(shared + PROBABILITIES_EMPTY_AT + other * 8);
}

__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

__device__ __forceinline__ void warpgroup_sync(int half) {
  asm volatile("bar.sync %0, 128;" ::"r"(3 + half) : "memory");
}

// Whether block i's keys are there before the other warpgroup's probabilities of block i - 1. Scoring
// first hides that one's softmax; but waiting for keys first would keep the stage of block i - 1 from
// the producers. The results do not depend on it. One warp decides for the warpgroup.
__device__ __forceinline__ bool keys_come_first(uint8_t* memory, uint32_t shared, uint32_t i,
                                                int half, int thread) {
  volatile int32_t* order = reinterpret_cast<volatile int32_t*>(memory + ORDER_AT) + half;
  if (thread < 32) {
    const uint32_t keys = shared + KEYS_FULL_AT + half * 8;
    const uint32_t others = shared + PROBABILITIES_FULL_AT + (half ^ 1) * 8;
    bool first = false;
    while (true) {
      first = barrier_passed(keys, (i / 2) & 1);
      if (first || barrier_passed(others, ((i - 1) / 2) & 1)) break;
    }
    if (thread == 0) *order = first;
  }
  warpgroup_sync(half);
  return *order != 0;
}

__device__ __forceinline__ void score_when_there(float (&s)[32], uint32_t shared, uint32_t i,
                                                 int half) {
  sm90::mbarrier_wait(shared + KEYS_FULL_AT + half * 8, (i / 2) & 1);
  score_block(s, shared, half);
  sm90::wgmma_wait<0>();
  sm90::pin(s);
}

// Warpgroup `half` scores blocks half, half + 2, ... and multiplies all blocks with its channels.
__device__ __forceinline__ void consume(const Params& p, uint8_t* memory, uint32_t shared,
                                        int half, int thread) {
  const Piece piece = this_piece(p);
  load_queries(p, piece, shared, thread + half * 128);
  const int lane = thread & 31;
  const int row = (thread >> 5) * 16 + (lane >> 2);
  const float scale = p.scale_log2 * KEY_UNIT;
  const uint32_t blocks = piece.last - piece.first;
  const int other = half ^ 1;
  const uint32_t keys_empty = shared + KEYS_EMPTY_AT;
  RowState a, b;
  float s[32];
  float o[2][64];
  clear(o);
  sm90::named_sync<1, CONSUMERS>();
#pragma unroll 1
  for (uint32_t i = half;; i += 2) {
    const bool mine = i < blocks;
    const bool others = i > 0 && i - 1 < blocks;
    const bool score_first = mine && (!others || keys_come_first(memory, shared, i, half, thread));
    if (score_first) score_when_there(s, shared, i, half);
    if (others) {
      sm90::mbarrier_wait(shared + KEYS_FULL_AT + other * 8, ((i - 1) / 2) & 1);
      sm90::mbarrier_wait(shared + PROBABILITIES_FULL_AT + other * 8, ((i - 1) / 2) & 1);
      const volatile float* rescale =
          reinterpret_cast<const volatile float*>(memory + RESCALE_AT) + other * HEADS + row;
      const volatile float* maximum =
          reinterpret_cast<const volatile float*>(memory + MAXIMUM_AT) + other * HEADS + row;
      const float factor_a = rescale[0];
      const float factor_b = rescale[8];
      a.maximum = maximum[0];
      b.maximum = maximum[8];
      a.sum *= factor_a;
      b.sum *= factor_b;
      rescale_output(o, factor_a, factor_b);
      multiply_block(o, shared, other, half, i > 1);
    }
    if (!mine) break;
    if (!score_first) {
      sm90::wgmma_wait<0>();
      release(shared, other, lane);
      score_when_there(s, shared, i, half);
    }
    float factor_a, factor_b;
    soften_block(s, a, b, factor_a, factor_b, scale, memory, shared, i, thread);
    sm90::wgmma_wait<0>();
    if (others && score_first) release(shared, other, lane);
    sm90::pin(o[0]);
    sm90::pin(o[1]);
    rescale_output(o, factor_a, factor_b);
    warpgroup_sync(half);  // the tile is complete
    multiply_block(o, shared, half, half, i > 0);
    sm90::wgmma_wait<0>();
    if (lane == 0) sm90::mbarrier_arrive(keys_empty + half * 8);
  }
  sm90::wgmma_wait<0>();
  sm90::pin(o[0]);
  sm90::pin(o[1]);
  float* sums = reinterpret_cast<float*>(memory + SUM_AT);
  const float sum_a = sum_of_four_lanes(a.sum);
  const float sum_b = sum_of_four_lanes(b.sum);
  if ((lane & 3) == 0) {
    sums[half * HEADS + row] = sum_a;
    sums[half * HEADS + row + 8] = sum_b;
  }
  sm90::named_sync<2, CONSUMERS>();  // sums are written, keys no longer read
  const int64_t number = piece_number(piece.row, blockIdx.y, p.splits, piece.group, gridDim.z);
  const bool writes = half == 0 && (lane & 3) == 0;
  const float out_a = finish_row(p, piece, number, row, a.maximum,
                                 sums[row] + sums[HEADS + row], writes);
  const float out_b = finish_row(p, piece, number, row + 8, b.maximum,
                                 sums[row + 8] + sums[HEADS + row + 8], writes);
  store_output(p, piece, number, o, out_a, out_b, shared, half, thread);
}

}  // namespace decode

extern "C" __global__ void __launch_bounds__(decode::THREADS, 1)
    sparse_mla_decode(const __grid_constant__ decode::Params p) {
  using namespace decode;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t shared = sm90::shared_address(memory);
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x >> 5, 0);  // one value, to the compiler
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      sm90::mbarrier_init(shared + KEYS_FULL_AT + i * 8, KEY_WARPS);
      sm90::mbarrier_init(shared + KEYS_EMPTY_AT + i * 8, CONSUMERS / 32);
      sm90::mbarrier_init(shared + PROBABILITIES_FULL_AT + i * 8, 4);
      sm90::mbarrier_init(shared + PROBABILITIES_EMPTY_AT + i * 8, 4);
    }
    sm90::mbarrier_init_fence();
  }
  __syncthreads();
  // Launched while the kernel before still runs: nothing it may have written is read before this.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
  if (warp < CONSUMERS / 32) {
    sm90::registers_grow<CONSUMER_REGISTERS>();
    consume(p, memory, shared, warp >> 2, threadIdx.x & 127);
  } else {
    sm90::registers_shrink<PRODUCER_REGISTERS>();
    KeyProducer<EXTRA_KIND>(p, shared, threadIdx.x - CONSUMERS).run();
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
  const int groups = p.heads / HEADS;
  const float2* stats = p.partial_stats + (piece_number(row, 0, p.splits, group, groups) * HEADS + local);
  const float4* parts = reinterpret_cast<const float4*>(p.partial_out) + (piece_number(row, 0, p.splits, group, groups) * HEADS + local) * (HEAD_DIM / 4) + threadIdx.x;
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
  float maximum = LOWEST;
  for (int i = 0; i < p.splits; ++i) maximum = fmaxf(maximum, stats[i * groups * HEADS].x);
  float sum = 0.0f;
  float4 total = make_float4(0, 0, 0, 0);
#pragma unroll 4
  for (int i = 0; i < p.splits; ++i) {
    const float2 stat = stats[i * groups * HEADS];
    const float weight = exp2f(stat.x - maximum);
    const float4 part = __ldcs(parts + i * groups * HEADS * (HEAD_DIM / 4));
    sum += weight * stat.y;
    total.x += weight * part.x;
    total.y += weight * part.y;
    total.z += weight * part.z;
    total.w += weight * part.w;
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
