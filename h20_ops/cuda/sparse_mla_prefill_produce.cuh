// What the producer warpgroup does: gather queries and keys in the order their buffers become free.
#pragma once

#include "sparse_mla_prefill_layout.cuh"

namespace prefill {

// Gather one half [64, 256] of a key block; eight threads copy 128 bytes of a row at a time.
__device__ __forceinline__ void gather_half(uint32_t target, const char* const (&rows)[4],
                                            uint32_t valid, int half) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      sm90::copy16_or_zero(target + tile * TILE_BYTES + i * 2048, rows[i] + half * 512 + tile * 128,
                           (valid >> i) & 1);
    }
  }
}

__device__ __forceinline__ void produce(const Params& p, Shared& shared) {
  const int thread = threadIdx.x % WARPGROUP;
  const int line = thread / 8, chunk = thread % 8;
  const uint32_t offset = line * 128 + ((chunk ^ (line % 8)) << 4);
  const uint32_t q_target = sm90::shared_address(shared.q) + offset;
  const uint32_t kv_target = sm90::shared_address(shared.kv) + offset;
  const uint32_t kv_ready = sm90::shared_address(shared.kv_ready);
  const uint32_t kv_free = sm90::shared_address(shared.kv_free);
  const char* kv = reinterpret_cast<const char*>(p.kv) + chunk * 16;
  const int64_t kv_row_bytes = 2 * p.kv_row_stride;
  const int s_kv = p.s_kv;
  uint32_t parity_q = 1, parity = 3;  // parity: one bit per side

  for (int number = blockIdx.x; number < p.num_works; number += gridDim.x) {
    const Work work = describe(p, number);
    const int count = work.count, blocks = work.blocks;
    const int* indices = work.indices + line;
    int next[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) next[i] = sm90::load_or(indices + 16 * i, line + 16 * i < count, -1);

    sm90::mbarrier_wait(sm90::shared_address(&shared.q_free), parity_q);
    parity_q ^= 1;
    {
      const char* rows[4];
      uint32_t valid = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = work.head_group * HEADS + line + 16 * i;
        if (head < p.h_q) valid |= 1u << i;
        rows[i] = reinterpret_cast<const char*>(p.q + work.query * p.q_row_stride +
                                                (head < p.h_q ? head : 0) * p.q_head_stride) +
                  chunk * 16;
      }
      gather_half(q_target, rows, valid, 0);
      gather_half(q_target + HALF_BYTES, rows, valid, 1);
      sm90::mbarrier_arrive_after_copies(sm90::shared_address(&shared.q_ready));
    }

    // Two blocks a turn, so that buffers and barriers have constant addresses.
    for (int first = 0; first < blocks; first += 2) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int block = first + side;
        if (block >= blocks) break;
        const char* rows[4];
        uint32_t valid = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool inside = next[i] >= 0 && next[i] < s_kv;
          if (inside) valid |= 1u << i;
          rows[i] = kv + (inside ? next[i] : 0) * kv_row_bytes;
          sm90::pin(rows[i]);  // addresses before the wait, copies right after it
          const int at = (block + 1) * KEYS + 16 * i;
          next[i] = sm90::load_or(indices + at, line + at < count, -1);
        }
        // The half its scorer keeps is free first: left of even blocks, right of odd ones.
#pragma unroll
        for (int turn = 0; turn < 2; ++turn) {
          const int half = turn ^ side;
          const int at = 2 * side + half;
          sm90::mbarrier_wait(kv_free + 8 * at, (parity >> side) & 1);
          gather_half(kv_target + at * HALF_BYTES, rows, valid, half);
          sm90::mbarrier_arrive_after_copies(kv_ready + 8 * at);
        }
        parity ^= 1u << side;
      }
    }
  }
}

}  // namespace prefill
