// How a warp gets its 32 keys of a tile: 16 bytes of codes of four keys per lane, and one key's exponents.
//
// Lane 4g + t holds group t (channels 32t .. 32t + 31) of key g of each of four eights of keys, and all
// four exponents of key g of eight t. Neighbouring lanes read neighbouring bytes: an eight of keys is 512
// bytes behind each other.
#pragma once

#include "mqa_logits_paged_memory.cuh"
#include "mqa_logits_paged_plan.cuh"
#include "sm90.cuh"

namespace paged {

struct Keys {
  uint4 codes[4];
  uint32_t exponents;
};

// Where lane's part of eight number `i` of the warp's units begins, and where its exponents are.
__device__ __forceinline__ uint64_t codes_at(const Unit* units, int i, int lane) {
  if (ALIGNED) return units[i].codes + lane * 16;
  return units[i * 8 + (lane >> 2)].codes + (lane & 3) * 16;
}

__device__ __forceinline__ uint64_t exponents_at(const Unit* units, int lane) {
  const Unit unit = units[ALIGNED ? lane & 3 : (lane & 3) * 8 + (lane >> 2)];
  return unit.codes + unit.exponents + (ALIGNED ? (lane >> 2) * 4 : 0);
}

// Whether the key whose exponents this lane holds counts.
__device__ __forceinline__ bool exists(const Unit* units, int lane) {
  if (ALIGNED) return (lane >> 2) < units[lane & 3].count;
  return units[(lane & 3) * 8 + (lane >> 2)].count != 0;
}

constexpr uint32_t STAGE_BYTES = 2048 + 128;  // of a warp

// STAGES tiles on their way through a part of shared memory that only this thread reads and writes, so
// that nothing has to be synchronised.
struct Fetcher {
  uint32_t shared;  // of the warp
  int lane;

  __device__ __forceinline__ void start(const Unit* units, int number) const {
    const uint32_t stage = shared + (number % STAGES) * STAGE_BYTES;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t source = codes_at(units, i, lane);
      const uint32_t target = stage + i * 512 + lane * 16;
      if (ALIGNED) {
        copy16(target, source);
      } else {
#pragma unroll
        for (int word = 0; word < 4; ++word) copy4(target + word * 4, source + word * 4);
      }
    }
    copy4(stage + 2048 + lane * 4, exponents_at(units, lane));
  }

  // Wait for the oldest of STAGES commits and read what it brought.
  __device__ __forceinline__ void take(Keys& keys, int number) const {
    wait_copies<STAGES - 1>();
    const uint32_t stage = shared + (number % STAGES) * STAGE_BYTES;
#pragma unroll
    for (int i = 0; i < 4; ++i) keys.codes[i] = sm90::load_shared16(stage + i * 512 + lane * 16);
    keys.exponents = load_shared4(stage + 2048 + lane * 4);
  }
};

}  // namespace paged
