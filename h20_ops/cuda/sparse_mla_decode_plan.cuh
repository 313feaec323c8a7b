// What one call of the paged decode works on, and how its work is cut into pieces.
//
// A row is one query token with 64 heads of one head group. Its keys are the index row of the main
// scope followed by that of the extra scope, each cut into blocks of 64; the blocks of a row are
// dealt to `splits` pieces. Every warp derives the same pieces from blockIdx.x alone.
#pragma once

#include <cstdint>

namespace decode {

constexpr int HEADS = 64;        // per piece
constexpr int BLOCK_KEYS = 64;   // per pipeline stage
constexpr int HEAD_DIM = 512;    // of scores and of values
constexpr int TILE_BYTES = 8192; // 64 rows of 64 bf16, 128-byte swizzle
constexpr int STAGES = 2;

// Keys are kept in shared memory times 2^-64, so that neither record's scale can leave bf16's
// exponent range on the way; the logits' factor and the final division put 2^64 back.
constexpr int KEY_SHIFT = 64;
constexpr float KEY_UNIT = 18446744073709551616.0f;  // 2^64

struct Scope {
  const uint8_t* cache;      // pages at multiples of page_stride bytes, dense records inside
  const int32_t* indices;    // slot = page * page_size + position, negative: no key
  const int32_t* lengths;    // per batch row, or null
  int64_t page_stride;
  int64_t batch_stride;      // of indices, in elements
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
  const float* sink;       // or null
  uint16_t* out;           // [rows, heads, 512]
  float* lse;              // [rows, heads]
  float* partial_out;      // [pieces, 64, 512] in the channel order of shared memory
  float2* partial_stats;   // [pieces, 64]: running maximum (log2 units), sum
  int32_t rows;
  int32_t queries;         // per batch row
  int32_t heads;
  int32_t head_groups;
  int32_t splits;
  int32_t pieces;
  float scale_log2;        // softmax scale * log2(e)
};

struct Piece {
  int row;
  int group;
  int first;       // block numbers of this piece: [first, last)
  int last;
  int main_blocks; // blocks below this number belong to the main scope
  int main_keys;
  int extra_keys;
};

__device__ __forceinline__ int keys_of(const Scope& scope, int batch) {
  if (scope.lengths == nullptr) return scope.topk;
  const int length = __ldg(scope.lengths + batch);
  return max(0, min(length, scope.topk));
}

__device__ __forceinline__ Piece piece_of(const Params& p, int number) {
  Piece piece;
  piece.group = number % p.head_groups;
  const int rest = number / p.head_groups;
  const int split = rest % p.splits;
  piece.row = rest / p.splits;
  const int batch = piece.row / p.queries;
  piece.main_keys = keys_of(p.main, batch);
  piece.extra_keys = keys_of(p.extra, batch);
  piece.main_blocks = (piece.main_keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
  const int blocks = piece.main_blocks + (piece.extra_keys + BLOCK_KEYS - 1) / BLOCK_KEYS;
  piece.first = split * blocks / p.splits;
  piece.last = (split + 1) * blocks / p.splits;
  return piece;
}

// Shared memory of one block, in bytes from its start.
constexpr int QUERY_AT = 0;
constexpr int KEYS_AT = QUERY_AT + 8 * TILE_BYTES;
constexpr int PROBABILITIES_AT = KEYS_AT + STAGES * 8 * TILE_BYTES;
constexpr int RESCALE_AT = PROBABILITIES_AT + STAGES * TILE_BYTES;  // float [2][64]
constexpr int FACTOR_AT = RESCALE_AT + STAGES * HEADS * 4;          // float [64]
constexpr int VALID_AT = FACTOR_AT + HEADS * 4;                     // one bit per key, [2][8] bytes
constexpr int BARRIERS_AT = VALID_AT + STAGES * 8;
constexpr int CURSOR_AT = BARRIERS_AT + 8 * STAGES * 4;
constexpr int CURSOR_BYTES = 32;
constexpr int RECORDS_AT = CURSOR_AT + CURSOR_BYTES;                // 8 addresses per warp
constexpr int SHARED_BYTES = RECORDS_AT + 8 * 64;

// Rows of a finished piece, laid out from KEYS_AT; the padding spreads rows over the banks.
constexpr int OUTPUT_PITCH = HEAD_DIM * 2 + 16;
constexpr int PARTIAL_PITCH = HEAD_DIM * 4 + 32;
static_assert(KEYS_AT + HEADS * PARTIAL_PITCH <= RESCALE_AT);

}  // namespace decode
