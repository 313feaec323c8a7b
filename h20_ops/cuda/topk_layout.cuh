// Arguments, shared memory and the order of elements of the top-k kernel.
#pragma once

constexpr bool BF16 = IS_BF16 != 0;
constexpr int THREADS = BLOCK_THREADS;
constexpr int WARPS = THREADS / 32;
constexpr int STAGES = RING_STAGES;
constexpr int BIN_BITS = HISTOGRAM_BITS;
constexpr int BINS = 1 << BIN_BITS;      // of the histogram of a sample or of all candidates
constexpr int LAST_BITS = 8;
constexpr int LAST_BINS = 1 << LAST_BITS;  // of the histogram that finds the result's last element
constexpr int MOST_BLOCKS = 8;     // of a cluster
constexpr int LIST = 128;          // elements of one bin that are ranked one by one
constexpr int BITMAP_WORDS = BINS;  // columns whose choice is written at once, by 32
constexpr int STAGE_BYTES = RING_STAGE_BYTES;
constexpr int STAGE_VECTORS = STAGE_BYTES / 16;
constexpr int THREAD_VECTORS = STAGE_VECTORS / THREADS;
constexpr int VECTOR_ELEMENTS = BF16 ? 8 : 4;
constexpr int CAPACITY = CANDIDATES;
constexpr uint32_t FULL_WARP = 0xffffffffu;

static_assert(STAGE_VECTORS % THREADS == 0 && THREAD_VECTORS * VECTOR_ELEMENTS <= 32, "STAGE_BYTES");
static_assert(CAPACITY % THREADS == 0, "CAPACITY");
static_assert(BINS % (2 * THREADS) == 0 && LAST_BINS <= 2 * THREADS && LIST <= THREADS, "THREADS");
static_assert(STAGES * STAGE_BYTES >= 32768, "a sorted row of 4096 elements fits the ring");

struct Params {
  const void* input;
  const int32_t* end;     // per row, or null
  const int32_t* offset;  // per row, or null
  void* values;           // contiguous, or null
  void* indices;          // int32, or int64 if wide
  uint8_t* nan_rows;      // or null
  int64_t row_stride;     // of the input, in elements
  int64_t index_stride;   // of indices, in elements
  int64_t index_fill;
  uint32_t value_fill;  // bits of the element
  int32_t columns;
  int32_t k;
  int32_t blocks;       // of a row: the cluster's size
  int32_t column_bits;  // columns <= 2^column_bits
  int32_t wide;
  int32_t sorted;
};
static_assert(sizeof(Params) == EXPECTED_PARAMS_BYTES, "Params and its mirror in Python differ");

struct alignas(128) Shared {
  uint4 ring[STAGES][STAGE_VECTORS];
  uint4 sample[THREADS];
  unsigned long long candidates[CAPACITY];
  union {
    uint32_t histogram[BINS];
    uint32_t bitmap[BITMAP_WORDS];
  };
  unsigned long long list[LIST];
  unsigned long long gathered[LIST];
  unsigned long long threshold;
  uint64_t full[STAGES];
  uint32_t warp_sums[2][32];
  uint32_t count;  // of candidates; above CAPACITY when some found no place
  uint32_t guess;  // the key below which elements were left out, if not 0
  uint32_t key_min;
  uint32_t key_max;
  uint32_t list_count;
  uint32_t above_all;  // of the block's candidates, those above all that are ranked one by one
  uint32_t before;     // ranked ones that are chosen and belong to blocks before this one
  uint32_t placed;
  uint32_t has_nan;
  uint32_t bin;
  uint32_t above;
  uint32_t members;
};
static_assert(sizeof(Shared) == EXPECTED_SHARED_BYTES, "shared bytes and their number in Python");

// Elements are compared as numbers that hold the value's key above the column's complement: larger
// values first, lower columns first among equal ones. No two elements of a row are equal; none is 0.
using Element = unsigned long long;

// The key of a value that is not NaN: unsigned order is the values' order, -0 and +0 are equal.
__device__ __forceinline__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  const uint32_t key = bits ^ (static_cast<uint32_t>(static_cast<int32_t>(bits) >> 31) | 0x80000000u);
  return BF16 ? key >> 16 : key;
}

// The least value whose key is at least this one; NaN if there is none.
__device__ __forceinline__ float value_of(uint32_t key) {
  if (BF16) key = key << 16 | ((key & 0x8000u) ? 0u : 0xffffu);
  return __uint_as_float((key & 0x80000000u) ? key ^ 0x80000000u : ~key);
}

__device__ __forceinline__ Element element_of(const Params& p, float x, uint32_t column) {
  const uint32_t last = (1u << p.column_bits) - 1;
  return (Element(key_of(x)) << p.column_bits) | (last - column);
}

__device__ __forceinline__ uint32_t column_of(const Params& p, Element element) {
  const uint32_t last = (1u << p.column_bits) - 1;
  return last - (static_cast<uint32_t>(element) & last);
}

__device__ __forceinline__ float read_element(const uint4* vectors, int element) {
  if (BF16) {
    const uint32_t bits = reinterpret_cast<const uint16_t*>(vectors)[element];
    return __uint_as_float(bits << 16);
  }
  return reinterpret_cast<const float*>(vectors)[element];
}

// The part of a row that a block reads: whole 16-byte vectors from an aligned address. The first and
// the last vector of a row may hold elements that do not belong to it.
struct Slice {
  const uint4* base;  // vector 0 of the row
  int skip;           // elements of vector 0 before the row
  int end;            // columns of the row that count
  int first;          // vectors first .. last - 1 are this block's
  int last;
};

__device__ __forceinline__ Slice slice_of(const Params& p, int row, uint32_t rank) {
  constexpr int BYTES = BF16 ? 2 : 4;
  const uint64_t address = reinterpret_cast<uint64_t>(p.input) +
                           static_cast<uint64_t>(row * p.row_stride) * BYTES;
  Slice s;
  s.base = reinterpret_cast<const uint4*>(address & ~uint64_t(15));
  s.skip = static_cast<int>(address & 15) / BYTES;
  s.end = p.end == nullptr ? p.columns : min(max(p.end[row], 0), p.columns);
  const int vectors = s.end == 0 ? 0 : (s.skip + s.end + VECTOR_ELEMENTS - 1) / VECTOR_ELEMENTS;
  const int each = ((vectors + p.blocks - 1) / p.blocks + 7) / 8 * 8;  // whole 128-byte lines
  s.first = min(static_cast<int>(rank) * each, vectors);
  s.last = min(s.first + each, vectors);
  return s;
}

// The column of a vector's first element; negative before the row.
__device__ __forceinline__ int column_at(const Slice& s, int vector) {
  return vector * VECTOR_ELEMENTS - s.skip;
}
