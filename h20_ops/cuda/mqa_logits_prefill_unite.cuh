// Candidates of neighbouring rows are mostly the same. One CTA makes the union of what a block of rows
// lists: pieces of 8 keys, each once, with the place (in pieces) where each token lists it.
//
// Ids ascend, so a token's bits in a bitmap stand in the order of its list, and the place of a piece is
// the number of the token's bits before it. Rows whose keys start elsewhere share nothing: pieces of
// rows with the same start are united, start after start.
#pragma once

#include "mqa_logits_prefill_layout.cuh"

namespace logits {

constexpr int UNITE_TOKENS = 2 * TOKENS;
constexpr int WINDOW_WORDS = EXPAND_THREADS;     // a thread has a word of each bitmap
constexpr int WINDOW = 32 * WINDOW_WORDS;        // pieces

struct UniteShared {
  uint32_t bits[UNITE_TOKENS][WINDOW_WORDS];
  int start[UNITE_TOKENS];
  int length[UNITE_TOKENS];
  int listed[UNITE_TOKENS];                      // ids of the list that count
  int reach[UNITE_TOKENS];                       // one more than the largest piece
  int from[UNITE_TOKENS], to[UNITE_TOKENS];      // ids of the window
  uint64_t warp_counts[EXPAND_THREADS / 32][3];
};

// First position of an ascending list whose id is not below `id`.
__device__ __forceinline__ int first_not_below(const int* ids, int count, int id) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (__ldg(ids + middle) < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

template <typename Out>
__device__ __forceinline__ void fill_row(Out* row, int from, int to) {
  for (int column = from + threadIdx.x; column < to; column += EXPAND_THREADS) {
    store_one(row + column, -INFINITY);
  }
}

__device__ __forceinline__ void unite(const Params& p, int block, UniteShared& shared) {
  const int tokens = p.heads > HEADS ? TOKENS : 2 * TOKENS;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int shift = p.block_shift, pieces_shift = shift - 3;  // a block is 1 or 2 pieces
  const int64_t first_token = static_cast<int64_t>(block) * tokens;
  const auto list_of = [&](int t) { return p.blocks + (first_token + t) * p.blocks_row_stride; };
  if (thread < UNITE_TOKENS) {
    const int64_t token = first_token + thread;
    int start = -1, length = 0;
    if (thread < tokens && token < p.rows) {
      start = __ldg(p.ks + token);
      length = row_length(p, start, __ldg(p.ke + token));
    }
    shared.start[thread] = start;
    shared.length[thread] = length;
    shared.listed[thread] = 0;
    shared.reach[thread] = 0;
  }
  __syncthreads();
  // A warp per token counts the leading ids that are ids of the row; the rest of its columns are -inf.
  if (warp < tokens && shared.length[warp] > 0) {
    const int length = shared.length[warp];
    const int slots = min(p.num_blocks, (length + (1 << shift) - 1) >> shift);
    const int largest = (length - 1) >> shift;
    const int* ids = list_of(warp);
    int listed = 0;
    for (int base = 0; base < slots; base += 32) {
      const int id = sm90::load_or(ids + base + lane, base + lane < slots, -1);
      const uint32_t good = __ballot_sync(0xffffffffu, id >= 0 && id <= largest);
      if (good != 0xffffffffu) {
        listed += __ffs(~good) - 1;
        break;
      }
      listed += 32;
    }
    if (lane == 0) {
      shared.listed[warp] = listed;
      if (listed > 0) shared.reach[warp] = (__ldg(ids + listed - 1) + 1) << pieces_shift;
    }
  }
  __syncthreads();
  for (int t = 0; t < tokens; ++t) {
    const int length = shared.length[t];
    if (length == 0) continue;
    const int slots = min(p.num_blocks, (length + (1 << shift) - 1) >> shift);
    const int to = ((slots << shift) + CANDIDATE_STEP_KEYS - 1) / CANDIDATE_STEP_KEYS * CANDIDATE_STEP_KEYS;
    const int64_t row = (first_token + t) * p.out_row_stride;
    if (p.out_is_fp32) fill_row(static_cast<float*>(p.out) + row, shared.listed[t] << shift, to);
    else fill_row(static_cast<bf16*>(p.out) + row, shared.listed[t] << shift, to);
  }

  int* keys = p.union_keys + static_cast<int64_t>(block) * p.union_capacity;
  uint4* slots = p.union_slots + static_cast<int64_t>(block) * p.union_capacity;
  int count = 0;
  uint32_t done = 0;
  for (int leader = 0; leader < tokens; ++leader) {
    if ((done >> leader & 1) != 0 || shared.listed[leader] == 0) continue;
    const int start = shared.start[leader];
    uint32_t members = 0;
    int reach = 0;
    for (int t = leader; t < tokens; ++t) {
      if (shared.listed[t] > 0 && shared.start[t] == start) {
        members |= 1u << t;
        reach = max(reach, shared.reach[t]);
      }
    }
    done |= members;
    for (int window = 0; window < reach; window += WINDOW) {
      __syncthreads();  // the last window's bitmaps are read
      for (int t = 0; t < UNITE_TOKENS; ++t) shared.bits[t][thread] = 0;
      if (thread < tokens && (members >> thread & 1) != 0) {
        const int* ids = list_of(thread);
        const int listed = shared.listed[thread];
        shared.from[thread] = first_not_below(ids, listed, window >> pieces_shift);
        shared.to[thread] = first_not_below(ids, listed, (window + WINDOW) >> pieces_shift);
      }
      __syncthreads();
      for (int t = 0; t < tokens; ++t) {
        if ((members >> t & 1) == 0) continue;
        const int* ids = list_of(t);
        for (int i = shared.from[t] + thread; i < shared.to[t]; i += EXPAND_THREADS) {
          const uint32_t piece = static_cast<uint32_t>((__ldg(ids + i) << pieces_shift) - window);
          if (piece < WINDOW) {
            atomicOr(&shared.bits[t][piece / 32], (pieces_shift ? 3u : 1u) << (piece % 32));
          }
        }
      }
      __syncthreads();
      uint32_t bits[UNITE_TOKENS], any = 0;
      uint64_t counts[3] = {0, 0, 0};  // four tokens of 16 bits, four more, the union
#pragma unroll
      for (int t = 0; t < UNITE_TOKENS; ++t) {
        bits[t] = shared.bits[t][thread];
        any |= bits[t];
        counts[t / 4] += static_cast<uint64_t>(__popc(bits[t])) << (16 * (t % 4));
      }
      counts[2] = __popc(any);
      uint64_t before[3];
#pragma unroll
      for (int i = 0; i < 3; ++i) {
        uint64_t sum = counts[i];
#pragma unroll
        for (int offset = 1; offset < 32; offset *= 2) {
          const uint64_t other = __shfl_up_sync(0xffffffffu, sum, offset);
          if (lane >= offset) sum += other;
        }
        if (lane == 31) shared.warp_counts[warp][i] = sum;
        before[i] = sum - counts[i];
      }
      __syncthreads();
      uint64_t total = 0;
      for (int w = 0; w < EXPAND_THREADS / 32; ++w) {
        if (w < warp) {
#pragma unroll
          for (int i = 0; i < 3; ++i) before[i] += shared.warp_counts[w][i];
        }
        total += shared.warp_counts[w][2];
      }
      int at = count + static_cast<int>(before[2]);
      for (uint32_t rest = any; rest != 0; rest &= rest - 1, ++at) {
        const int bit = __ffs(rest) - 1;
        const uint32_t below = (1u << bit) - 1;
        uint32_t places[UNITE_TOKENS];
#pragma unroll
        for (int t = 0; t < UNITE_TOKENS; ++t) {
          const uint32_t earlier = static_cast<uint32_t>(before[t / 4] >> (16 * (t % 4))) & 0xFFFF;
          const uint32_t place = (static_cast<uint32_t>(shared.from[t]) << pieces_shift) + earlier +
                                 __popc(bits[t] & below);
          places[t] = (bits[t] >> bit & 1) != 0 ? place : NO_SLOT;
        }
        keys[at] = start + (window + 32 * thread + bit) * PIECE_KEYS;
        slots[at] = make_uint4(places[0] | places[1] << 16, places[2] | places[3] << 16,
                               places[4] | places[5] << 16, places[6] | places[7] << 16);
      }
      count += static_cast<int>(total);
    }
  }
  const int padded = (count + STEP_PIECES - 1) / STEP_PIECES * STEP_PIECES;
  if (count + thread < padded) {
    keys[count + thread] = p.keys;  // behind the last: zeros
    slots[count + thread] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
  if (thread == 0) p.union_counts[block] = count;
}

}  // namespace logits
