// Indexer logits of decode rows against FP4 index pages: sum over heads of weight * relu(q . k).
//
// A block of four warps works off its share of all tiles (mqa_logits_paged_plan.cuh). Keys go from memory
// to registers, are expanded there to e4m3 (mqa_logits_paged_fp4.cuh) and enter the tensor cores as the
// left operand, 64 keys by 32 channels at a time; the row's queries are the right one, in shared memory.
// Which channel stands where along K is free as long as both sides agree: step s takes from lane t of a
// quad the eight channels 32t + 8s .. 32t + 8s + 7, so that a lane needs only the 16 bytes of group t.
// A column's sums run in the same order wherever it stands, so candidates give the dense logits' bits.
#include "mqa_logits_paged_fp4.cuh"
#include "mqa_logits_paged_keys.cuh"
#include "mqa_logits_paged_memory.cuh"
#include "mqa_logits_paged_plan.cuh"
#include "mqa_logits_paged_wgmma.cuh"
#include "sm90.cuh"

namespace paged {

constexpr uint32_t QUERIES_AT = 0;
constexpr uint32_t UNITS_AT = HEADS * 128;
constexpr uint32_t STAGES_AT = UNITS_AT + SEGMENT_UNITS * sizeof(Unit);
constexpr uint32_t WEIGHTS_AT = STAGES_AT + STAGES * 4 * STAGE_BYTES;
constexpr uint32_t TABLES_AT = WEIGHTS_AT + HEADS * 4;
constexpr uint32_t SCRATCH_AT = TABLES_AT + TABLES * TABLE_BYTES;
constexpr uint32_t MARK_AT = SCRATCH_AT + 24;
constexpr uint32_t SHARED_BYTES = SCRATCH_AT + 32;
static_assert(SHARED_BYTES == EXPECTED_SHARED_BYTES, "mqa_logits_paged_kernel.py: shared_bytes");

// relu(x) is taken as x + |x| (the FP32 units' own operation), and queries and keys each reach 2^6 times
// their codes' values: half of 2^-12 for both.
constexpr float WEIGHT_UNIT = 0.5f / (1 << (2 * LARGEST_SHIFT));

// What a thread loads of a row's queries, early: a head's exponents, a group's codes and a weight.
struct Queries {
  uint32_t exponents[HEADS / 32];
  uint4 codes[HEADS / 32];
  float weights[HEADS / 32];

  __device__ __forceinline__ void load(const Params& p, int row) {
    const int lane = threadIdx.x & 31;
    const int group = threadIdx.x & 3;
#pragma unroll
    for (int i = 0; i < HEADS / 32; ++i) {
      const int head = i * 32 + lane;
      exponents[i] = 0;
      if (head < p.heads) exponents[i] = __ldg(p.q_sf + row * p.sf_row_stride + head * p.sf_head_stride);
      const int own = i * 32 + (threadIdx.x >> 2);
      codes[i] = make_uint4(0, 0, 0, 0);
      weights[i] = 0.0f;
      if (own < p.heads) {
        codes[i] = __ldg(reinterpret_cast<const uint4*>(p.q + row * p.q_row_stride +
                                                        own * p.q_head_stride + group * 16));
        weights[i] = __bfloat162float(p.weights[row * p.weight_row_stride + own]);
      }
    }
  }

  // Expand them into shared memory and return the largest exponent of any head, which is taken out of
  // all: a head's own, smaller one goes into its weight.
  __device__ __forceinline__ int store(uint32_t shared) const {
    const int group = threadIdx.x & 3;
    int largest = 0;
#pragma unroll
    for (int i = 0; i < HEADS / 32; ++i) {
      uint32_t unused;
      largest = max(largest, static_cast<int>(largest_exponent(exponents[i], unused)));
    }
    largest = __reduce_max_sync(0xffffffffu, largest);
#pragma unroll
    for (int i = 0; i < HEADS / 32; ++i) {
      const int head = i * 32 + (threadIdx.x >> 2);
      uint32_t table_bytes;
      const uint32_t own = __shfl_sync(0xffffffffu, exponents[i], threadIdx.x >> 2);
      const int head_largest = largest_exponent(own, table_bytes);
      const uint2 table = load_shared8(shared + TABLES_AT + ((table_bytes >> (8 * group)) & 0xFF));
      const uint32_t words[4] = {codes[i].x, codes[i].y, codes[i].z, codes[i].w};
      const uint32_t target = shared + QUERIES_AT + head * 128 + group * 4;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint32_t low, high;
        expand8(words[step], table, MARK, low, high);
        store_shared4(target + (((2 * step) ^ (head & 7)) << 4), low);
        store_shared4(target + (((2 * step + 1) ^ (head & 7)) << 4), high);
      }
      if (group == 0) {
        const float scale = __int_as_float(max(127 + head_largest - largest, 0) << 23);
        store_shared4(shared + WEIGHTS_AT + head * 4,
                      __float_as_uint(weights[i] * WEIGHT_UNIT * scale));
      }
    }
    sm90::fence_async_proxy();
    return largest;
  }
};

// A thread's part of the weighted sums of two rows of the product.
__device__ __forceinline__ void add_heads(float (&d)[HEADS / 2], const float (&weights)[HEADS / 4],
                                          float& first, float& second) {
  sm90::pin(d);
  first = second = 0.0f;
#pragma unroll
  for (int i = 0; i < HEADS / 4; ++i) {
    const float a = d[4 * (i >> 1) + (i & 1)];
    const float b = d[4 * (i >> 1) + (i & 1) + 2];
    first = fmaf(a + fabsf(a), weights[i], first);
    second = fmaf(b + fabsf(b), weights[i], second);
  }
}

// Lanes of a quad hold parts of four sums; lane t gets sum t, whatever t is added in the same order.
__device__ __forceinline__ float add_quad(const float (&parts)[4], int lane) {
  const bool upper = lane & 2;
  const bool odd = lane & 1;
  const float far0 = __shfl_xor_sync(0xffffffffu, upper ? parts[0] : parts[2], 2);
  const float far1 = __shfl_xor_sync(0xffffffffu, upper ? parts[1] : parts[3], 2);
  const float pair0 = (upper ? parts[2] : parts[0]) + far0;
  const float pair1 = (upper ? parts[3] : parts[1]) + far1;
  return (odd ? pair1 : pair0) + __shfl_xor_sync(0xffffffffu, odd ? pair0 : pair1, 1);
}

__device__ __forceinline__ void store_logit(const Params& p, int64_t at, float value) {
#if OUT_FP32
  static_cast<float*>(p.out)[at] = value;
#else
  static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(value);
#endif
}

// Expand 16 of a warp's keys and start their product with all queries.
__device__ __forceinline__ void start_product(const uint4* codes, const uint2* tables, uint32_t mark,
                                              uint64_t queries, uint32_t (&a)[16],
                                              float (&d)[HEADS / 2]) {
  const uint32_t one[4] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w};
  const uint32_t two[4] = {codes[1].x, codes[1].y, codes[1].z, codes[1].w};
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    expand8(one[step], tables[0], mark, a[4 * step], a[4 * step + 2]);
    expand8(two[step], tables[1], mark, a[4 * step + 1], a[4 * step + 3]);
  }
  sm90::wgmma_fence();
#pragma unroll
  for (int step = 0; step < 4; ++step) multiply(d, a + 4 * step, queries + 2 * step, step != 0);
  sm90::wgmma_commit();
}

// What is known of a warp's keys before they are multiplied.
struct Scales {
  uint2 tables[4];  // of this lane's group in its four keys
  int largest;      // exponent of the key whose logit this lane stores
};

__device__ __forceinline__ Scales find_scales(uint32_t exponents, const Transposition& transposed,
                                              uint32_t shared) {
  Scales scales;
  uint32_t table_bytes;
  scales.largest = largest_exponent(exponents, table_bytes);
  const uint32_t mine = transposed(table_bytes);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    scales.tables[i] = load_shared8(shared + TABLES_AT + ((mine >> (8 * i)) & 0xFF));
  }
  return scales;
}

// Add up a tile's sums, give them their power of two and store this lane's logit.
__device__ __forceinline__ void finish(const Params& p, int64_t at, const float (&parts)[4], int exponent,
                                       int largest, const Unit* units, int lane) {
  float logit = scale_by(add_quad(parts, lane), exponent + largest);
  if (max(exponent, largest) == 255) logit = __int_as_float(0x7FFFFFFF);
  if (!exists(units, lane)) logit = -INFINITY;
  store_logit(p, at, logit);
}

// Work off the listed tiles of one row, from `column` on, two at a time: four products of 16 keys a
// warp. One is on its way while the sums of the one before are taken and the keys of the next expanded.
__device__ __forceinline__ void score(const Params& p, int row, int column, int tiles, int exponent,
                                      const float (&weights)[HEADS / 4], const Unit* list,
                                      uint32_t shared) {
  const int warp = threadIdx.x >> 5;
  const int lane = threadIdx.x & 31;
  const uint64_t queries = sm90::swizzled_tile(shared + QUERIES_AT, 0, 1024);
  const Unit* units = list + warp * WARP_UNITS;
  constexpr int NEXT = 4 * WARP_UNITS;
  constexpr bool EARLY = HEADS == 32;  // there are registers for the keys of the next tile
  int64_t at = row * p.out_stride + column + warp * 32 + (lane & 3) * 8 + (lane >> 2);
  const Transposition transposed(lane);
  // From memory, since the assembler copies a constant that it knows for each use.
  const uint32_t mark = load_shared4(shared + MARK_AT);
  const Fetcher fetcher{shared + STAGES_AT + warp * STAGES * STAGE_BYTES, lane};
#pragma unroll
  for (int i = 0; i < STAGES; ++i) {
    if (i < tiles) fetcher.start(units + i * NEXT, i);
    commit_copies();
  }
#pragma unroll 1
  for (int tile = 0; tile < tiles; tile += 2, units += 2 * NEXT, at += 2 * TILE) {
    uint32_t a[2][16];
    float d[2][HEADS / 2];
    float parts[4];
    Keys keys;
    fetcher.take(keys, tile);
    Scales scales = find_scales(keys.exponents, transposed, shared);
    start_product(keys.codes, scales.tables, mark, queries, a[0], d[0]);
    start_product(keys.codes + 2, scales.tables + 2, mark, queries, a[1], d[1]);
    if (tile + STAGES < tiles) fetcher.start(units + STAGES * NEXT, tile + STAGES);
    commit_copies();
    const int first_largest = scales.largest;
    // Behind the last tile this takes whatever lies in the stage; nobody stores what comes of it.
    if (EARLY) {
      fetcher.take(keys, tile + 1);
      scales = find_scales(keys.exponents, transposed, shared);
    }
    sm90::wgmma_wait<1>();
    add_heads(d[0], weights, parts[0], parts[1]);
    if (!EARLY) {
      fetcher.take(keys, tile + 1);
      scales = find_scales(keys.exponents, transposed, shared);
    }
    start_product(keys.codes, scales.tables, mark, queries, a[0], d[0]);
    sm90::wgmma_wait<1>();
    add_heads(d[1], weights, parts[2], parts[3]);
    finish(p, at, parts, exponent, first_largest, units, lane);
    start_product(keys.codes + 2, scales.tables + 2, mark, queries, a[1], d[1]);
    if (tile + 1 + STAGES < tiles) fetcher.start(units + (1 + STAGES) * NEXT, tile + 1 + STAGES);
    commit_copies();
    sm90::wgmma_wait<1>();
    add_heads(d[0], weights, parts[0], parts[1]);
    sm90::wgmma_wait<0>();
    add_heads(d[1], weights, parts[2], parts[3]);
    if (tile + 1 < tiles) finish(p, at + TILE, parts, exponent, scales.largest, units + NEXT, lane);
  }
}

}  // namespace paged

extern "C" __global__ void __launch_bounds__(paged::THREADS, BLOCKS)
    mqa_logits_paged(const __grid_constant__ paged::Params p) {
  using namespace paged;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = sm90::shared_address(memory);
  const int thread = threadIdx.x;
  if (thread < TABLES) {
    reinterpret_cast<uint2*>(memory + TABLES_AT)[thread] = magnitude_table(thread);
  }
  if (thread == 0) store_shared4(shared + MARK_AT, MARK);
  wait_for_previous_kernel();
  Share share = find_share(p, reinterpret_cast<int*>(memory + SCRATCH_AT));
  Unit* list = reinterpret_cast<Unit*>(memory + UNITS_AT);
  float weights[HEADS / 4];
  int loaded = -1;
  int exponent = 0;
  while (share.tiles > 0) {
    const int row = share.row;
    const int length = length_of(p, row);
    const int of_row = tiles_of(p, row);
    if (share.tile >= of_row) {
      ++share.row;
      share.tile = 0;
      continue;
    }
    const int tiles = min(min(share.tiles, of_row - share.tile), SEGMENT_TILES);
    const int used = (used_columns(p, length) + TILE - 1) / TILE;
    const int scored = max(min(tiles, used - share.tile), 0);
    const int column = share.tile * TILE;
    Queries queries;
    if (row != loaded) queries.load(p, row);
    __syncthreads();  // the segment before is done with
    list_units(p, row, length, column, scored * (TILE / UNIT), list);
    if (row != loaded) exponent = queries.store(shared);
    __syncthreads();
    if (row != loaded) {
#pragma unroll
      for (int i = 0; i < HEADS / 4; ++i) {
        const int head = 8 * (i >> 1) + 2 * (thread & 3) + (i & 1);
        weights[i] = reinterpret_cast<float*>(memory + WEIGHTS_AT)[head];
      }
    }
    loaded = row;
    if (scored > 0) score(p, row, column, scored, exponent, weights, list, shared);
    for (int tile = scored; tile < tiles; ++tile) {
      store_logit(p, row * p.out_stride + column + tile * TILE + thread, -INFINITY);
    }
    share.tile += tiles;
    share.tiles -= tiles;
  }
}
