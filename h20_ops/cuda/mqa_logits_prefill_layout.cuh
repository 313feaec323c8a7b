// What the launches are given, how the work space is laid out, and how rows and keys stand in tiles.
//
// Queries and keys are expanded to e4m3 once per call into tiles that one bulk copy brings to shared
// memory ready for wgmma: rows of 128 bytes in the 128-byte swizzle. The order of rows is ours:
//  - Keys are the rows of A. Rows g and g + 8 of 16 are keys 2 g and 2 g + 1, so that a thread, which
//    holds both rows, stores two neighbouring columns at once.
//  - Dense, B is 128 rows: 32 heads of 4 tokens, token t on the rows n with n % 8 / 2 == t. A thread's
//    accumulators then are all heads of one token, and summing over heads needs no other thread.
//  - By candidate blocks every row has keys of its own, B is the heads of one token in their order, and
//    four threads share a token.
// Both sum a token's heads in the same order, in four classes (head % 8 / 2), so they agree bit for bit.
#pragma once

#include "fp4_expand.cuh"
#include "mqa_logits_prefill_memory.cuh"

namespace logits {

constexpr int WARPGROUP = 128;
constexpr int MATH_WARPGROUPS = 3;
constexpr int STAGES = 5;
// Heads of a class of eight whose number has one of these bits take their relu by saturation.
constexpr int SATURATE = 1;
constexpr int TILE_KEYS = 64;                      // rows of one wgmma
constexpr int ROW_BYTES = 128;
constexpr int KEY_TILE_BYTES = TILE_KEYS * ROW_BYTES;
constexpr int Q_TILE_BYTES = 128 * ROW_BYTES;      // 32 heads of 4 tokens
constexpr int TOKENS = 4;
constexpr int HEADS = 32;                          // of a tile; 64 heads are two tiles
constexpr int Q_TILES = 2;                         // a block of rows is two tiles
constexpr int STEP_KEYS = TILE_KEYS * MATH_WARPGROUPS;
constexpr int CANDIDATE_STEP_KEYS = 128;               // keys of a stage, by candidate blocks
constexpr int EXPAND_THREADS = 256;
constexpr int CACHED_ENDS = 4096;
// A key's exponent is kept as (exponent + KEY_BIAS) << 23, never 0; 0 stands for no key.
constexpr int KEY_BIAS = 160;
constexpr int TOKEN_BIAS = 127 - KEY_BIAS;

enum Kind { DENSE = 0, GATHERED = 1, UNITED = 2 };
constexpr int PIECE_KEYS = 8;                      // of a union; a candidate block is one or two
constexpr int STEP_PIECES = STEP_KEYS / PIECE_KEYS;
// A token's place of a piece: the slot in pieces, and above it how many keys are there if not all 8.
constexpr int SLOT_BITS = 13;
constexpr uint32_t NO_SLOT = 0xFFFF;

struct alignas(16) RowInfo {
  int64_t offset;  // of column 0 in the output, in elements
  int start;       // key of column 0
  int length;      // columns that hold logits
  int stop;        // columns up to the end of the row's last tile, which are written
  int scale;       // (exponent + TOKEN_BIAS) << 23
};

struct DenseMeta {              // of one tile of B
  float weights[TOKENS][HEADS]; // entry 8 c + o: head 8 (o / 2) + 2 c + o % 2
  RowInfo rows[TOKENS];
};

struct CandidateMeta {          // of one token
  float weights[2 * HEADS];     // entry (8 c + o) of 32 heads, (16 c + o) of 64
  RowInfo row;
};

struct Params {
  const uint8_t* q;             // (rows, heads, 64)
  const int* q_sf;
  const uint8_t* k;             // (keys, 64)
  const int* k_sf;
  const bf16* weights;
  const int* ks;
  const int* ke;
  const int* blocks;            // candidates, null when dense
  void* out;
  uint8_t* q_tiles;             // work space
  uint8_t* q_meta;
  uint8_t* k_tiles;
  uint32_t* k_scale;
  int2* ranges;                 // first step and number of steps of each block of rows
  int* ends;                    // steps up to and with each block of rows
  int2* starts;                 // block of rows and step in it at which each CTA begins
  int* total;                   // steps of all blocks of rows
  int* union_keys;              // first key of each piece of a block of rows
  uint4* union_slots;           // and its places in the lists of 8 tokens, 16 bits each
  int* union_counts;            // pieces of each block of rows
  int64_t q_row_stride;         // strides in elements
  int64_t q_head_stride;
  int64_t q_sf_row_stride;
  int64_t q_sf_head_stride;
  int64_t k_row_stride;
  int64_t k_sf_stride;
  int64_t weights_row_stride;
  int64_t blocks_row_stride;
  int64_t out_row_stride;
  int rows;
  int heads;
  int keys;
  int columns;                  // longest range of keys: max_kv_len
  int padded_columns;           // that a row owns
  int num_blocks;
  int block_shift;              // 3 or 4
  int row_blocks;               // blocks of rows, dense
  int key_tiles;                // tiles of 64 keys in the work space
  int main_grid;                // CTAs of the launch that follows the expansion
  int kind;                     // Kind
  int union_capacity;           // pieces a block of rows may have
  int union_segments;           // units of work of a block of rows
  int out_is_fp32;
};

__device__ __forceinline__ int swizzled(int row, int chunk) {
  return row * ROW_BYTES + ((chunk ^ (row & 7)) << 4);
}

// Row of a key tile that holds key 0 .. 63.
__device__ __forceinline__ int tile_row_of_key(int key) {
  return (key & 48) + ((key & 15) >> 1) + 8 * (key & 1);
}

// Columns of a row that hold logits, when its keys are start .. end - 1 and no more than `columns`.
__device__ __forceinline__ int row_length(const Params& p, int start, int end) {
  return max(0, min(min(end, p.keys) - start, p.columns));
}

// Products of e4m3 values of at most 384 are below 384 * 384 * 128 < 2^25, so some heads of a class may
// take their relu by saturation; the weights of the others and the token's exponent make up for its
// factor. At least one takes it by comparison, which passes NaN on.
__device__ constexpr bool saturates(int head_of_class) { return (head_of_class & SATURATE) != 0; }
constexpr int COMPARED_EXPONENT = SATURATE ? -SATURATION_LOG2 : 0;  // of the others' weights

__device__ __forceinline__ float add_head(float weight, float product, float sum, int head_of_class) {
  return fmaf(weight, saturates(head_of_class) ? relu_by_saturation(product) : relu(product), sum);
}

// Multiply by the power of two of a token and a key.
__device__ __forceinline__ float scaled(float sum, uint32_t key_scale, int token_scale) {
  const uint32_t bits = key_scale + static_cast<uint32_t>(token_scale);
  if (bits - 0x00800000u < 0x7F000000u) return sum * __uint_as_float(bits);
  const int exponent = static_cast<int>(key_scale >> 23) + (token_scale >> 23) - 127;
  return ldexpf(sum, exponent);
}

__device__ __forceinline__ void store_pair(bf16* target, float low, float high) {
  *reinterpret_cast<uint32_t*>(target) = sm90::pack_bf16(low, high);
}
__device__ __forceinline__ void store_pair(float* target, float low, float high) {
  *reinterpret_cast<float2*>(target) = make_float2(low, high);
}
__device__ __forceinline__ void store_one(bf16* target, float value) {
  *target = __float2bfloat16_rn(value);
}
__device__ __forceinline__ void store_one(float* target, float value) { *target = value; }

}  // namespace logits
