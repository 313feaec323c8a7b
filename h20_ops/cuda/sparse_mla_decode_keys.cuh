// The warps that fetch records and expand them to bf16 tiles in shared memory.
//
// Warp w owns keys 8w .. 8w+7 of each block. Lane k < 8 works out the address of key k; lanes then
// load 16 bytes each, two loads to a batch (two FP8 records or four FP4 records). Four batches are on
// their way or being expanded at any time: small ones, since a batch is fetched anew only when the
// one before it in the same registers is expanded.
// The order of channels in shared memory is whatever makes expanding cheap, and queries and outputs
// follow it: channel 128g + 16c + 8h + e lies in tile 2g + h, 16-byte chunk c (exclusive-or'ed with
// the row, as the tensor cores want it), element 0 2 1 3 4 6 5 7 [e].
#pragma once

#include "sm90.cuh"
#include "sparse_mla_decode_plan.cuh"

namespace decode {

constexpr int EXTRA_NONE = 0;
constexpr int EXTRA_FP8 = 1;
constexpr int EXTRA_FP4 = 2;

struct Batch {
  uint4 values[2];
  uint32_t scales;
};

// What a batch holds; 0 is no batch.
constexpr uint32_t TAG_PRESENT = 1;
constexpr uint32_t TAG_FP4 = 2;
constexpr uint32_t TAG_LAST = 4;    // of its block
constexpr uint32_t TAG_PART = 8;    // times 0 to 3: which of the warp's key pairs (FP4: fours)
constexpr int TAG_PART_SHIFT = 3;
constexpr int TAG_VALID_SHIFT = 8;  // eight bits: which of the warp's keys exist

__device__ __forceinline__ void store4(uint32_t address, uint32_t a) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(a) : "memory");
}

__device__ __forceinline__ void store16(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                        uint32_t d) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
               "r"(d));
}

// Loads that give zeros where there is no record. They are predicated instead of branched around:
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

__device__ __forceinline__ uint32_t load4(uint64_t address, bool exists) {
  uint32_t v;
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %1, 0;\nmov.u32 %0, 0;\n"
      "@p ld.global.nc.L1::no_allocate.u32 %0, [%2];\n}"
      : "=&r"(v)
      : "r"(static_cast<int>(exists)), "l"(address));
  return v;
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
  const uint32_t low = ((bytes * 256u) & 0x80008000u) | ((bytes * 16u) & 0x07f007f0u);
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

__device__ __forceinline__ void expand_eight(uint32_t codes, uint32_t factor, uint32_t target) {
  uint32_t w0, w1, w2, w3;
  expand_e2m1<0x1100>(codes, factor, w0, w1);
  expand_e2m1<0x3322>(codes, factor, w2, w3);
  store16(target, w0, w1, w2, w3);
}

// Two e4m3 scale bytes to bf16 pairs of the scale times 2^(126 - KEY_SHIFT).
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

template <int EXTRA>
class KeyProducer {
 public:
  // All threads of the producing warpgroups construct theirs together.
  __device__ __forceinline__ KeyProducer(const Params& params, uint32_t shared, int thread)
      : p(params), thread(thread), lane(thread & 31), shared(shared) {
    const Piece piece = this_piece(p);
    copy_indices(piece);
    first = piece.first;
    last = piece.last;
    main_blocks = piece.main_blocks;
    block = first;
    locate();
  }

  __device__ __forceinline__ void run() {
    Batch a, b, c, d;
    uint32_t tag_a = issue(a);
    uint32_t tag_b = issue(b);
    uint32_t tag_c = issue(c);
    uint32_t tag_d = issue(d);
#pragma unroll 1
    while (turn(a, tag_a) && turn(b, tag_b) && turn(c, tag_c) && turn(d, tag_d)) {
    }
  }

 private:
  // Expand a batch and start the next one in its place; false if there was none.
  __device__ __forceinline__ bool turn(Batch& batch, uint32_t& held) {
    if (held == 0) return false;
    expand(batch, held);
    held = issue(batch);
    return true;
  }

  const Params& p;
  const int thread;
  const int lane;
  const uint32_t shared;
  int first;
  int last;
  int main_blocks;
  int block;              // to be issued next; its records are located
  uint64_t address;       // of this lane's key of it, 0: none
  uint32_t tag = 0;       // of its next batch
  uint32_t expanded = 0;  // blocks handed over so far

  __device__ __forceinline__ bool in_extra(int number) const {
    return EXTRA != EXTRA_NONE && number >= main_blocks;
  }

  // Bring the piece's indices to shared memory at once. Loads of single ones between those of
  // records would wait for all of them: a warp has few counters of loads on their way.
  __device__ __forceinline__ void copy_indices(const Piece& piece) {
    const int32_t* main_row = p.main.indices + piece.batch * p.main.batch_stride +
                              piece.query * p.main.query_stride;
    const int32_t* extra_row = p.extra.indices + piece.batch * p.extra.batch_stride +
                               piece.query * p.extra.query_stride;
    const int shift = piece.main_blocks * BLOCK_KEYS;
    const int start = piece.first * BLOCK_KEYS;
    for (int at = start + thread; at < piece.last * BLOCK_KEYS; at += KEY_WARPS * 32) {
      int index = -1;
      if (at < shift) {
        if (at < piece.main_keys) index = __ldg(main_row + at);
      } else if (EXTRA != EXTRA_NONE) {
        if (at - shift < piece.extra_keys) index = __ldg(extra_row + (at - shift));
      }
      store4(shared + INDICES_AT + (at - start) * 4, index);
    }
    sm90::named_sync<5, KEY_WARPS * 32>();
  }

  // Find the records of `block` from their slots.
  __device__ __forceinline__ void locate() {
    const bool extra = in_extra(block);
    const bool fp4 = EXTRA == EXTRA_FP4 && extra;
    const Scope& scope = extra ? p.extra : p.main;
    int index = -1;
    if (lane < 8 && block < last) {
      const int key = (block - first) * BLOCK_KEYS + (thread >> 5) * 8 + lane;
      asm volatile("ld.shared.s32 %0, [%1];" : "=r"(index) : "r"(shared + INDICES_AT + key * 4));
    }
    const uint32_t mask = __ballot_sync(0xffffffffu, index >= 0);
    const uint32_t slot = max(index, 0);
    const uint32_t page = static_cast<uint32_t>(
        (static_cast<uint64_t>(slot) * scope.page_multiplier) >> (31 + scope.page_shift));
    const uint32_t position = slot - page * scope.page_size;
    const uint64_t found = reinterpret_cast<uint64_t>(scope.cache) + page * scope.page_stride +
                           position * (fp4 ? FP4_BYTES : FP8_BYTES);
    address = index >= 0 ? found : 0;
    tag = block < last ? TAG_PRESENT | (fp4 ? TAG_FP4 : 0) | (mask << TAG_VALID_SHIFT) : 0;
  }

  // The lane number, so that what follows from it is computed anew instead of kept in registers.
  __device__ __forceinline__ int fresh_lane() const {
    int lane = this->lane;
    asm volatile("" : "+r"(lane));
    return lane;
  }

  // Start the loads of the next batch and return its tag (0: nothing left).
  __device__ __forceinline__ uint32_t issue(Batch& batch) {
    const int lane = fresh_lane();
    const uint32_t current = tag;
    if (current == 0) return 0;
    const int part = (current >> TAG_PART_SHIFT) & 3;
    if (EXTRA == EXTRA_FP4 && (current & TAG_FP4)) {
      const int piece = (lane & 3) + 4 * (lane >> 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint64_t record =
            __shfl_sync(0xffffffffu, address, part * 4 + 2 * i + ((lane >> 2) & 1));
        batch.values[i] = load16(record + piece * 16, record != 0);
      }
      const uint64_t record = __shfl_sync(0xffffffffu, address, part * 4 + (lane >> 3));
      batch.scales = load4(record + 256 + (lane & 7) * 4, record != 0);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint64_t record = __shfl_sync(0xffffffffu, address, part * 2 + i);
        batch.values[i] = load16(record + lane * 16, record != 0);
      }
      const uint64_t record = __shfl_sync(0xffffffffu, address, part * 2 + ((lane >> 2) & 1));
      batch.scales = load4(record + 512 + (lane & 3) * 4, record != 0);
    }
    if (part == ((current & TAG_FP4) ? 1 : 3)) {
      ++block;
      locate();
      return current | TAG_LAST;
    }
    tag = current + TAG_PART;
    return current;
  }

  // Write a batch to its stage as bf16.
  __device__ __forceinline__ void expand(const Batch& batch, uint32_t held) {
    const uint32_t stage = expanded % STAGES;
    const uint32_t full = shared + KEYS_FULL_AT + stage * 8;
    const int part = (held >> TAG_PART_SHIFT) & 3;
    if (part == 0) {
      sm90::mbarrier_wait(full + STAGES * 8, ((expanded / STAGES) & 1) ^ 1);
      if (lane == 0) {
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(shared + VALID_AT + stage * 8 + (thread >> 5)),
                     "r"(held >> TAG_VALID_SHIFT)
                     : "memory");
      }
    }
    const int lane = fresh_lane();
    const uint32_t tiles = shared + KEYS_AT + (stage * 8 + (lane >> 3) * 2) * TILE_BYTES +
                           (thread >> 5) * 8 * 128;
    if (EXTRA == EXTRA_FP4 && (held & TAG_FP4)) {
      expand_fp4(batch, tiles, lane, part * 4);
    } else {
      expand_fp8(batch, tiles, lane, part * 2);
    }
    if (held & TAG_LAST) {
      sm90::fence_async_proxy();
      __syncwarp();
      if (lane == 0) sm90::mbarrier_arrive(full);
      ++expanded;
    }
  }

  __device__ __forceinline__ void expand_fp8(const Batch& batch, uint32_t tiles, int lane,
                                             int first) const {
    uint32_t factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = __shfl_sync(0xffffffffu, batch.scales, i * 4 + (lane >> 3));
      const uint32_t scale = __byte_perm(word, 0, 0x4440 | ((lane >> 1) & 3));
      // 2^(scale - 127 - KEY_SHIFT + 120), the 120 undoing the bias that expand_e4m3 leaves.
      factors[i] = min(scale + 120 - KEY_SHIFT, 255u) * 0x00800080u;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint4 v = batch.values[i];
      const int key = first + i;
      const uint32_t target = tiles + key * 128 + (((lane & 7) ^ key) << 4);
      uint32_t w0, w1, w2, w3;
      expand_e4m3(v.x, factors[i], w0, w1);
      expand_e4m3(v.y, factors[i], w2, w3);
      store16(target, w0, w1, w2, w3);
      expand_e4m3(v.z, factors[i], w0, w1);
      expand_e4m3(v.w, factors[i], w2, w3);
      store16(target + TILE_BYTES, w0, w1, w2, w3);
    }
  }

  // Four lanes take one key and the next four the other, so that eight lanes fill eight banks.
  __device__ __forceinline__ void expand_fp4(const Batch& batch, uint32_t tiles, int lane,
                                             int first) const {
    // A lane's 32 channels have two scale bytes: half of word piece / 2 of its key's eight.
    const int piece = (lane & 3) + 4 * (lane >> 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int in_batch = 2 * i + ((lane >> 2) & 1);
      const uint32_t word = __shfl_sync(0xffffffffu, batch.scales, in_batch * 8 + (piece >> 1));
      uint32_t factor_a, factor_b;
      fp4_factors(__byte_perm(word, 0, (lane & 1) ? 0x4432 : 0x4410), factor_a, factor_b);
      const int key = first + in_batch;
      const uint32_t target = tiles + key * 128 + (((2 * (lane & 3)) ^ key) << 4);
      const uint4 v = batch.values[i];
      expand_eight(v.x, factor_a, target);
      expand_eight(v.y, factor_a, target + TILE_BYTES);
      expand_eight(v.z, factor_b, target ^ 16);
      expand_eight(v.w, factor_b, (target ^ 16) + TILE_BYTES);
    }
  }
};

}  // namespace decode
