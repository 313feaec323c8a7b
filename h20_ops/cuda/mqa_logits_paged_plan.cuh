// Arguments of the paged logits, what part of them a block works on, and where its keys lie.
//
// Columns of all rows are cut into tiles of 128, and each block takes an equal, contiguous share of the
// tiles that hold anything. Shares follow from the lengths on the device, so one captured grid fits every
// batch. A share is worked off in segments: tiles of one row, up to SEGMENT_TILES.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "sm90.cuh"

namespace paged {

constexpr int THREADS = 128;
constexpr int TILE = 128;                   // columns; a warp has 32 of them
constexpr int UNIT = ALIGNED ? 8 : 1;       // keys that are sure to lie behind each other in a page
constexpr int WARP_UNITS = 32 / UNIT;
constexpr int SEGMENT_TILES = ALIGNED ? 64 : 8;
constexpr int SEGMENT_UNITS = SEGMENT_TILES * TILE / UNIT;
constexpr int CODE_BYTES = 64;              // of a key

struct Params {
  const uint8_t* q;
  const int32_t* q_sf;
  const uint8_t* cache;
  const __nv_bfloat16* weights;
  const int32_t* lengths;
  const int32_t* tables;
  const int32_t* candidates;  // null: all columns
  void* out;
  int64_t q_row_stride;       // bytes, as the next
  int64_t q_head_stride;
  int64_t sf_row_stride;      // elements, as all below
  int64_t sf_head_stride;
  int64_t weight_row_stride;
  int64_t page_stride;        // bytes
  int64_t table_stride;
  int64_t candidate_stride;
  int64_t out_stride;
  int32_t rows;
  int32_t heads;
  int32_t page_size;
  int32_t max_length;
  int32_t num_candidates;
  int32_t candidate_block;
  int32_t columns;
  int32_t fill;               // write -inf to the end of every row
};
static_assert(sizeof(Params) == EXPECTED_PARAMS_BYTES, "mqa_logits_paged_kernel.py: Params");

// A unit of keys: the address of its codes, how far behind it its exponents lie, and how many count.
struct __align__(16) Unit {
  uint64_t codes;
  int32_t exponents;
  int32_t count;
};

__device__ __forceinline__ int length_of(const Params& p, int row) {
  return min(max(__ldg(p.lengths + row), 0), p.max_length);
}

// Columns of a row that may hold something.
__device__ __forceinline__ int used_columns(const Params& p, int length) {
  if (p.candidates == nullptr) return length;
  const int blocks = (length + p.candidate_block - 1) / p.candidate_block;
  return min(blocks, p.num_candidates) * p.candidate_block;
}

__device__ __forceinline__ int tiles_of(const Params& p, int row) {
  const int columns = p.fill ? p.columns : used_columns(p, length_of(p, row));
  return (columns + TILE - 1) / TILE;
}

struct Share {
  int row;
  int tile;   // in the row
  int tiles;  // from there on, over row ends
};

// This block's share. `scratch` is shared memory of 8 words.
__device__ __forceinline__ Share find_share(const Params& p, int* scratch) {
  const int thread = threadIdx.x;
  const int per_thread = (p.rows + THREADS - 1) / THREADS;
  const int first = min(thread * per_thread, p.rows);
  const int last = min(first + per_thread, p.rows);
  int sum = 0;
  for (int row = first; row < last; ++row) sum += tiles_of(p, row);
  int before = sum;  // over this warp's threads up to here
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, before, distance);
    if ((thread & 31) >= distance) before += other;
  }
  if ((thread & 31) == 31) scratch[thread >> 5] = before;
  __syncthreads();
  int total = 0;
  before -= sum;
#pragma unroll
  for (int warp = 0; warp < THREADS / 32; ++warp) {
    if (warp < thread >> 5) before += scratch[warp];
    total += scratch[warp];
  }
  const int begin = static_cast<int>(static_cast<int64_t>(total) * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(static_cast<int64_t>(total) * (blockIdx.x + 1) / gridDim.x);
  if (begin >= before && begin < before + sum) {
    int row = first;
    int tile = begin - before;
    for (int tiles = tiles_of(p, row); tile >= tiles; tiles = tiles_of(p, row)) {
      tile -= tiles;
      ++row;
    }
    scratch[4] = row;
    scratch[5] = tile;
  }
  __syncthreads();
  return {scratch[4], scratch[5], end - begin};
}

// Note where the keys of a row's columns from `column` on lie. A unit without keys points at the first
// page, which may be read; its `count` is 0.
__device__ __forceinline__ void list_units(const Params& p, int row, int length, int column,
                                           int units, Unit* list) {
  const int32_t* table = p.tables + row * p.table_stride;
  const int32_t* candidates = p.candidates + row * p.candidate_stride;
  const int blocks = p.candidates ? (length + p.candidate_block - 1) / p.candidate_block : 0;
#pragma unroll 4
  for (int i = threadIdx.x; i < units; i += THREADS) {
    int position = column + i * UNIT;
    if (p.candidates) {
      const int slot = position / p.candidate_block;
      int block = -1;
      if (slot < min(blocks, p.num_candidates)) block = __ldg(candidates + slot);
      const bool exists = static_cast<uint32_t>(block) < static_cast<uint32_t>(blocks);
      position = exists ? block * p.candidate_block + position % p.candidate_block : length;
    }
    Unit unit = {reinterpret_cast<uint64_t>(p.cache), 0, 0};
    if (position < length) {
      const int page = __ldg(table + position / p.page_size);
      const int slot = position % p.page_size;
      unit.codes += page * p.page_stride + slot * CODE_BYTES;
      unit.exponents = (p.page_size - slot) * CODE_BYTES + slot * 4;
      unit.count = min(length - position, UNIT);
    }
    list[i] = unit;
  }
}

}  // namespace paged
