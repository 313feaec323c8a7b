// What one call of the paged decode works on, and how its work is cut into pieces.
//
// A row is one query token with 64 heads of one head group. Its keys are the index row of the main
// scope followed by that of the extra scope, each cut into blocks of 64; the blocks of a row are
// dealt to `splits` pieces, one thread block each: blockIdx is (row, split, head group).
#pragma once

#include <cstdint>

namespace decode {

constexpr int HEADS = 64;         // per piece
constexpr int BLOCK_KEYS = 64;    // per pipeline stage
constexpr int HEAD_DIM = 512;     // of scores and of values
constexpr int TILE_BYTES = 8192;  // 64 rows of 64 bf16, 128-byte swizzle
constexpr int STAGES = 2;         // of keys as bf16
constexpr int MAX_BLOCKS = 64;    // of a piece; the host splits longer rows
constexpr int KEY_WARPS = 8;      // that fetch and expand records, eight keys of a block each
constexpr int FP8_BYTES = 528;
constexpr int FP4_BYTES = 288;

// Keys are kept in shared memory times 2^-64, so that neither record's scale can leave bf16's
// exponent range on the way; the logits' factor and the final division put 2^64 back.
constexpr int KEY_SHIFT = 64;
constexpr float KEY_UNIT = 18446744073709551616.0f;  // 2^64

struct Scope {
  const uint8_t* cache;    // pages at multiples of page_stride bytes, dense records inside
  const int32_t* indices;  // slot = page * page_size + position, negative: no key
  const int32_t* lengths;  // per batch row, or null
  int64_t page_stride;
  int64_t batch_stride;  // of indices, in elements
  int64_t query_stride;
  uint32_t page_size;
  uint32_t page_multiplier;  // slot / page_size == slot * multiplier >> (31 + shift)
  uint32_t page_shift;
  int32_t topk;
};

struct Params {
  Scope main;
  Scope extra;
  const uint16_t* q;
  int64_t q_batch_stride;  // elements
  int64_t q_query_stride;
  int64_t q_head_stride;
  const float* sink;      // or null
  uint16_t* out;          // [rows, heads, 512]
  float* lse;             // [rows, heads]
  float* partial_out;     // [pieces, 64, 512] in the channel order of shared memory
  float2* partial_stats;  // [pieces, 64]: running maximum (log2 units), sum
  int32_t queries;        // per batch row
  int32_t heads;
  int32_t splits;
  float scale_log2;  // softmax scale * log2(e)
};

struct Piece {
  int row;
  int batch;
  int query;
  int group;
  int first;        // block numbers of this piece: [first, last)
  int last;
  int main_blocks;  // blocks below this number belong to the main scope
  int main_keys;
  int extra_keys;
};

__device__ __forceinline__ int keys_of(const Scope& scope, int batch) {
  if (scope.lengths == nullptr) return scope.topk;
  return max(0, min(__ldg(scope.lengths + batch), scope.topk));
}

__device__ __forceinline__ Piece this_piece(const Params& p) {
  Piece piece;
  piece.row = blockIdx.x;
  piece.group = blockIdx.z;
  piece.batch = piece.row;
  piece.query = 0;
  if (p.queries > 1) {
    piece.batch = piece.row / p.queries;
    piece.query = piece.row - piece.batch * p.queries;
  }
  piece.main_keys = keys_of(p.main, piece.batch);
  piece.extra_keys = keys_of(p.extra, piece.batch);
  piece.main_blocks = (piece.main_keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
  const int blocks = piece.main_blocks + (piece.extra_keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
  piece.first = 0;
  piece.last = blocks;
  if (p.splits > 1) {
    piece.first = blockIdx.y * blocks / p.splits;
    piece.last = (blockIdx.y + 1) * blocks / p.splits;
  }
  return piece;
}

// Where a piece's partial result lies: pieces of one row and head group are `head groups` apart.
__device__ __forceinline__ int64_t piece_number(int row, int split, int splits, int group,
                                                int groups) {
  return (static_cast<int64_t>(row) * splits + split) * groups + group;
}

// Shared memory of one block, in bytes from its start.
constexpr int QUERY_AT = 0;
constexpr int KEYS_AT = QUERY_AT + 8 * TILE_BYTES;
constexpr int PROBABILITIES_AT = KEYS_AT + STAGES * 8 * TILE_BYTES;
// Per row: what block i did to the running maximum, by i % 2; sums of either warpgroup's blocks.
constexpr int RESCALE_AT = PROBABILITIES_AT + 2 * TILE_BYTES;  // float [2][64]
constexpr int MAXIMUM_AT = RESCALE_AT + 2 * HEADS * 4;         // float [2][64]
constexpr int SUM_AT = MAXIMUM_AT + 2 * HEADS * 4;             // float [2][64]
constexpr int ORDER_AT = SUM_AT + 2 * HEADS * 4;               // int32 [2], see keys_come_first
constexpr int VALID_AT = ORDER_AT + 2 * 4;                     // one bit per key, [2][8] bytes
constexpr int KEYS_FULL_AT = VALID_AT + STAGES * 8;
constexpr int KEYS_EMPTY_AT = KEYS_FULL_AT + STAGES * 8;
constexpr int PROBABILITIES_FULL_AT = KEYS_EMPTY_AT + STAGES * 8;
constexpr int PROBABILITIES_EMPTY_AT = PROBABILITIES_FULL_AT + 2 * 8;
constexpr int INDICES_AT = PROBABILITIES_EMPTY_AT + 2 * 8;  // int32 [64 * MAX_BLOCKS]
constexpr int SHARED_BYTES = INDICES_AT + MAX_BLOCKS * BLOCK_KEYS * 4;
static_assert(SHARED_BYTES <= 232448);

// Rows of a finished piece, laid out from KEYS_AT; the padding spreads rows over the banks.
constexpr int OUTPUT_PITCH = HEAD_DIM * 2 + 16;
constexpr int PARTIAL_PITCH = HEAD_DIM * 4 + 32;
static_assert(KEYS_AT + HEADS * PARTIAL_PITCH <= RESCALE_AT);

}  // namespace decode
