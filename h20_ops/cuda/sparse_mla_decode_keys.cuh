// The two warpgroups that fetch records and turn them into bf16 tiles in shared memory.
//
// A warp owns keys 8w .. 8w+7 of each block. It fetches 16 bytes per lane and load, keeps two
// batches of four loads in flight, and expands a batch once its stage is free. Lanes hold runs of
// 16 (e4m3) or 32 (e2m1) channels; the order of channels in shared memory is whatever makes that
// cheap, and queries and outputs follow it (position_of_channel in the module's documentation):
//   channels 128g + 16c + 8h + e live in tile 2g + h, 16-byte chunk c, element 0 2 1 3 4 6 5 7 [e].
#pragma once

#include "sm90.cuh"
#include "sparse_mla_decode_plan.cuh"

namespace decode {

constexpr int EXTRA_NONE = 0;
constexpr int EXTRA_FP8 = 1;
constexpr int EXTRA_FP4 = 2;
constexpr int FP8_BYTES = 528;
constexpr int FP4_BYTES = 288;

struct Batch {
  uint4 values[4];
  uint2 scales;
};

// What a batch holds. No block has tag 0.
constexpr uint32_t TAG_PRESENT = 1;
constexpr uint32_t TAG_FP4 = 2;
constexpr uint32_t TAG_FIRST = 4;   // first batch of its block
constexpr uint32_t TAG_LAST = 8;
constexpr int TAG_VALID_SHIFT = 8;  // eight bits: which of the warp's keys exist

// Loads that leave zeros where the address is null. They are predicated instead of branched around:
// a branch makes the compiler copy, and so wait for, what was loaded where the paths meet.
__device__ __forceinline__ uint4 load16(uint64_t address, bool exists) {
  uint4 v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\n"
      "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
      "@p ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%5];\n}"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
      : "r"(static_cast<int>(exists)), "l"(address));
  return v;
}

__device__ __forceinline__ uint2 load8(uint64_t address, bool exists) {
  uint2 v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\nmov.u32 %0, 0;\nmov.u32 %1, 0;\n"
      "@p ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%3];\n}"
      : "=&r"(v.x), "=&r"(v.y)
      : "r"(static_cast<int>(exists)), "l"(address));
  return v;
}

__device__ __forceinline__ uint32_t load4(uint64_t address, bool exists) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nmov.u32 %0, 0;\n"
      "@p ld.global.nc.L1::no_allocate.u32 %0, [%2];\n}"
      : "=&r"(v)
      : "r"(static_cast<int>(exists)), "l"(address));
  return v;
}

__device__ __forceinline__ void store4(uint32_t address, uint32_t a) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(a) : "memory");
}

__device__ __forceinline__ void store16(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d)
               : "memory");
}

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t c;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}

// Four e4m3 bytes b0..b3 to bf16 pairs (b0, b2) and (b1, b3), times `factor`. The seven magnitude
// bits become bf16's low exponent and high mantissa bits; bf16 subnormals stand for e4m3's, and
// `factor` holds the difference of the exponent biases.
__device__ __forceinline__ void expand_e4m3(uint32_t bytes, uint32_t factor, uint32_t& even,
                                            uint32_t& odd) {
  const uint32_t low = ((bytes << 8) & 0x80008000u) | ((bytes << 4) & 0x07f007f0u);
  const uint32_t high = (bytes & 0x80008000u) | ((bytes >> 4) & 0x07f007f0u);
  even = multiply_bf16x2(low, factor);
  odd = multiply_bf16x2(high, factor);
}

// Two e2m1 pairs: bytes 0 and 1 (or 2 and 3) of `codes` hold channels 0 1 and 2 3; to (0, 2), (1, 3).
template <int SELECT>
__device__ __forceinline__ void expand_e2m1(uint32_t codes, uint32_t factor, uint32_t& even,
                                            uint32_t& odd) {
  const uint32_t spread = __byte_perm(codes, 0, SELECT);
  const uint32_t low = ((spread * 16u) & 0x80008000u) | ((spread * 64u) & 0x01c001c0u);
  const uint32_t high = (spread & 0x80008000u) | ((spread * 4u) & 0x01c001c0u);
  even = multiply_bf16x2(low, factor);
  odd = multiply_bf16x2(high, factor);
}

// e4m3 scale bytes (two) to bf16 pairs of the scale times 2^(126 - KEY_SHIFT).
__device__ __forceinline__ void fp4_factors(uint32_t scale_bytes, uint32_t& first,
                                            uint32_t& second) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;"
      : "=r"(halves)
      : "h"(static_cast<uint16_t>(scale_bytes)));
  float low, high;
  asm("{\n.reg .f16 a, b;\nmov.b32 {a, b}, %2;\ncvt.f32.f16 %0, a;\ncvt.f32.f16 %1, b;\n}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
  constexpr float UNIT = 4611686018427387904.0f;  // 2^62
  static_assert(126 - KEY_SHIFT == 62);
  first = sm90::pack_bf16(low * UNIT, low * UNIT);
  second = sm90::pack_bf16(high * UNIT, high * UNIT);
}

// Where the producers are in their piece. It lives in shared memory because their registers are
// few and it is looked at once a block.
struct Cursor {
  const int32_t* main_row;   // indices of block 0
  const int32_t* extra_row;  // as if the extra scope's blocks followed on the same index row
  int32_t main_keys;
  int32_t extra_keys;        // counted likewise from the main scope's block 0
  int32_t main_blocks;
  int32_t last;
};
static_assert(sizeof(Cursor) == CURSOR_BYTES);

__device__ __forceinline__ void make_cursor(const Params& p, const Piece& piece,
                                            volatile Cursor* cursor) {
  const int64_t batch = piece.row / p.queries;
  const int64_t query = piece.row % p.queries;
  const int shift = piece.main_blocks * BLOCK_KEYS;
  cursor->main_row =
      p.main.indices + batch * p.main.batch_stride + query * p.main.query_stride;
  cursor->extra_row =
      p.extra.indices + (batch * p.extra.batch_stride + query * p.extra.query_stride - shift);
  cursor->main_keys = piece.main_keys;
  cursor->extra_keys = piece.extra_keys + shift;
  cursor->main_blocks = piece.main_blocks;
  cursor->last = piece.last;
}

template <int EXTRA>
class KeyProducer {
 public:
  // All threads of the producing warpgroups construct theirs together.
  __device__ __forceinline__ KeyProducer(const Params& params, uint8_t* memory, int warp, int lane)
      : p(params),
        shared(sm90::shared_address(memory)),
        warp(warp),
        lane(lane),
        cursor(reinterpret_cast<volatile Cursor*>(memory + CURSOR_AT)),
        records(reinterpret_cast<volatile uint64_t*>(memory + RECORDS_AT + warp * 64)) {
    const Piece piece = piece_of(p, blockIdx.x);
    block = piece.first;
    if (warp == 0 && lane == 0) make_cursor(p, piece, cursor);
    sm90::named_sync<4, 256>();
    prefetch_index();
  }

  __device__ __forceinline__ void run() {
    Batch a, b;
    uint32_t tag_a = issue(a);
    uint32_t tag_b = issue(b);
    while (tag_a != 0) {
      expand(a, tag_a);
      tag_a = issue(a);
      if (tag_b == 0) break;
      expand(b, tag_b);
      tag_b = issue(b);
    }
  }

 private:
  const Params& p;
  const uint32_t shared;
  const int warp;
  const int lane;
  volatile Cursor* const cursor;
  volatile uint64_t* const records;  // of the block being issued, 0: no key
  int block;                         // next block
  int next_index;                    // of key 8 * warp + lane of that block (lanes 0..7)
  uint32_t pending = 0;              // tag of a second batch still to be issued
  uint32_t expanded = 0;             // blocks handed over so far

  __device__ __forceinline__ bool in_extra() const {
    return EXTRA != EXTRA_NONE && block >= cursor->main_blocks;
  }

  __device__ __forceinline__ void prefetch_index() {
    next_index = -1;
    if (block >= cursor->last || lane >= 8) return;
    const bool extra = in_extra();
    const int key = block * BLOCK_KEYS + warp * 8 + lane;
    const int32_t* row = extra ? cursor->extra_row : cursor->main_row;
    if (key < (extra ? cursor->extra_keys : cursor->main_keys)) next_index = __ldg(row + key);
  }

  // Make the next block the current one: addresses of its records, then fetch the indices after it.
  __device__ __forceinline__ uint32_t begin_block() {
    if (block >= cursor->last) return 0;
    const bool extra = in_extra();
    const Scope& scope = extra ? p.extra : p.main;
    const bool fp4 = EXTRA == EXTRA_FP4 && extra;
    const bool valid = next_index >= 0;
    const uint32_t slot = valid ? next_index : 0;
    const uint32_t page = static_cast<uint32_t>(
        (static_cast<uint64_t>(slot) * scope.page_multiplier) >> (31 + scope.page_shift));
    const uint32_t position = slot - page * scope.page_size;
    __syncwarp();
    if (lane < 8) {
      records[lane] = valid ? reinterpret_cast<uint64_t>(scope.cache) + page * scope.page_stride +
                                  position * (fp4 ? FP4_BYTES : FP8_BYTES)
                            : 0;
    }
    const uint32_t mask = __ballot_sync(0xffffffffu, valid) & 0xff;
    __syncwarp();
    ++block;
    prefetch_index();
    return TAG_PRESENT | TAG_FIRST | (fp4 ? TAG_FP4 | TAG_LAST : 0) | (mask << TAG_VALID_SHIFT);
  }

  // Start the loads of the next batch and return its tag (0: nothing left).
  __device__ __forceinline__ uint32_t issue(Batch& batch) {
    uint32_t tag = pending;
    pending = 0;
    if (tag == 0) {
      tag = begin_block();
      if (tag == 0) return 0;
      if (!(tag & TAG_LAST)) pending = (tag & ~TAG_FIRST) | TAG_LAST;
    }
    if (EXTRA == EXTRA_FP4 && (tag & TAG_FP4)) {
      const int part = (lane & 3) + 4 * (lane >> 3);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint64_t record = records[2 * i + ((lane >> 2) & 1)];
        batch.values[i] = load16(record + part * 16, record != 0);
      }
      const uint64_t record = records[lane >> 2];
      batch.scales = load8(record + 256 + (lane & 3) * 8, record != 0);
    } else {
      const int first = (tag & TAG_FIRST) ? 0 : 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint64_t record = records[first + i];
        batch.values[i] = load16(record + lane * 16, record != 0);
      }
      const uint64_t record = records[first + ((lane >> 2) & 3)];
      batch.scales.x = load4(record + 512 + (lane & 3) * 4, record != 0);
    }
    return tag;
  }

  // Write a batch to its stage as bf16.
  __device__ __forceinline__ void expand(const Batch& batch, uint32_t tag) {
    const uint32_t stage = expanded % STAGES;
    const uint32_t full = shared + BARRIERS_AT + stage * 8;
    if (tag & TAG_FIRST) {
      sm90::mbarrier_wait(full + STAGES * 8, ((expanded / STAGES) & 1) ^ 1);
      if (lane == 0) {
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(shared + VALID_AT + stage * 8 + warp),
                     "r"(tag >> TAG_VALID_SHIFT)
                     : "memory");
      }
    }
    const uint32_t rows =
        shared + KEYS_AT + stage * 8 * TILE_BYTES + (lane >> 3) * 2 * TILE_BYTES + warp * 8 * 128;
    if (EXTRA == EXTRA_FP4 && (tag & TAG_FP4)) {
      expand_fp4(batch, rows);
    } else {
      expand_fp8(batch, rows, (tag & TAG_FIRST) ? 0 : 4);
    }
    if (tag & TAG_LAST) {
      sm90::fence_async_proxy();
      __syncwarp();
      if (lane == 0) sm90::mbarrier_arrive(full);
      ++expanded;
    }
  }

  __device__ __forceinline__ void expand_fp8(const Batch& batch, uint32_t rows, int first) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = __shfl_sync(0xffffffffu, batch.scales.x, i * 4 + (lane >> 3));
      const uint32_t scale = (word >> ((lane >> 1 & 3) * 8)) & 0xff;
      // 2^(scale - 127 - KEY_SHIFT + 120), the 120 undoing the bias that expand_e4m3 leaves.
      const uint32_t factor = min(scale + 120 - KEY_SHIFT, 255u) * 0x00800080u;
      const uint4 v = batch.values[i];
      const int key = first + i;
      const uint32_t target = rows + key * 128 + (((lane & 7) ^ key) << 4);
      uint32_t w0, w1, w2, w3;
      expand_e4m3(v.x, factor, w0, w1);
      expand_e4m3(v.y, factor, w2, w3);
      store16(target, w0, w1, w2, w3);
      expand_e4m3(v.z, factor, w0, w1);
      expand_e4m3(v.w, factor, w2, w3);
      store16(target + TILE_BYTES, w0, w1, w2, w3);
    }
  }

  __device__ __forceinline__ void expand_fp4(const Batch& batch, uint32_t rows) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 2 * i + ((lane >> 2) & 1);
      const int source = key * 4 + (lane >> 3);
      const uint32_t word_x = __shfl_sync(0xffffffffu, batch.scales.x, source);
      const uint32_t word_y = __shfl_sync(0xffffffffu, batch.scales.y, source);
      const uint32_t word = (lane & 2) ? word_y : word_x;
      uint32_t factor_a, factor_b;
      fp4_factors((lane & 1) ? word >> 16 : word & 0xffff, factor_a, factor_b);
      const uint32_t target = rows + key * 128 + (((2 * (lane & 3)) ^ key) << 4);
      const uint4 v = batch.values[i];
      expand_eight(v.x, factor_a, target);
      expand_eight(v.y, factor_a, target + TILE_BYTES);
      expand_eight(v.z, factor_b, target ^ 16);
      expand_eight(v.w, factor_b, (target ^ 16) + TILE_BYTES);
    }
  }

  __device__ __forceinline__ void expand_eight(uint32_t codes, uint32_t factor, uint32_t target) {
    uint32_t w0, w1, w2, w3;
    expand_e2m1<0x1100>(codes, factor, w0, w1);
    expand_e2m1<0x3322>(codes, factor, w2, w3);
    store16(target, w0, w1, w2, w3);
  }
};

}  // namespace decode
