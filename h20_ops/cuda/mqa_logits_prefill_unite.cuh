// Candidates of neighbouring rows are mostly the same. One CTA makes the union of what a block of rows
// lists: pieces of 8 keys, each once, with the place (in pieces) where each token lists it.
//
// Ids ascend, so a token's bits in a bitmap stand in the order of its list, and the place of a piece is
// the number of the token's bits before it. Rows whose keys start elsewhere share nothing: pieces of
// rows with the same start are united, start after start. A warp walks the list of one token.
#pragma once

#include "mqa_logits_prefill_layout.cuh"

namespace logits {

constexpr int UNITE_TOKENS = 2 * TOKENS;
constexpr int WINDOW_WORDS = EXPAND_THREADS;     // a thread has a word of each bitmap
constexpr int WINDOW = 32 * WINDOW_WORDS;        // pieces
constexpr int IDS_AT_ONCE = 16;                  // of a lane
static_assert(UNITE_TOKENS == EXPAND_THREADS / 32, "a warp per token");

struct UniteShared {
  uint32_t bits[UNITE_TOKENS][WINDOW_WORDS];
  int start[UNITE_TOKENS];
  int length[UNITE_TOKENS];
  int place[UNITE_TOKENS];                       // of a token's first piece in the window
  int next[UNITE_TOKENS];                        // a token's first piece behind the window, or NO_MORE
  uint64_t warp_counts[EXPAND_THREADS / 32][3];
};
constexpr int NO_MORE = 0x7fffffff;

template <typename Out>
__device__ __forceinline__ void fill_row(Out* row, int from, int to) {
  for (int column = from + threadIdx.x % 32; column < to; column += 32) {
    store_one(row + column, -INFINITY);
  }
}

__device__ __forceinline__ void unite(const Params& p, int block, UniteShared& shared) {
  const int tokens = p.heads > HEADS ? TOKENS : 2 * TOKENS;
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int shift = p.block_shift, pieces_shift = shift - 3;  // a block is 1 or 2 pieces
  // The warp's token.
  const int64_t token = static_cast<int64_t>(block) * tokens + warp;
  int start = -1, length = 0;
  if (warp < tokens && token < p.rows) {
    start = __ldg(p.ks + token);
    length = row_length(p, start, __ldg(p.ke + token));
  }
  if (lane == 0) {
    shared.start[warp] = start;
    shared.length[warp] = length;
  }
  const int* ids = p.blocks + (length > 0 ? token * p.blocks_row_stride : 0);
  const int slots = min(p.num_blocks, (length + (1 << shift) - 1) >> shift);
  const int largest = (length - 1) >> shift;
  int listed = 0;  // ids walked so far
  __syncthreads();

  int* keys = p.union_keys + static_cast<int64_t>(block) * p.union_capacity;
  uint4* places_out = p.union_slots + static_cast<int64_t>(block) * p.union_capacity;
  int count = 0;
  uint32_t done = 0;
  for (int leader = 0; leader < tokens; ++leader) {
    if ((done >> leader & 1) != 0 || shared.length[leader] == 0) continue;
    const int common_start = shared.start[leader];
    uint32_t members = 0;
    for (int t = leader; t < tokens; ++t) {
      if (shared.length[t] > 0 && shared.start[t] == common_start) members |= 1u << t;
    }
    done |= members;
    const bool member = (members >> warp & 1) != 0;
    for (int window = 0; window != NO_MORE;) {
      for (int t = 0; t < UNITE_TOKENS; ++t) shared.bits[t][thread] = 0;
      __syncthreads();
      if (lane == 0) {
        shared.place[warp] = listed << pieces_shift;
        shared.next[warp] = NO_MORE;
      }
      for (bool more = member; more;) {
        int some[IDS_AT_ONCE];
        const int at = listed + lane;
#pragma unroll
        for (int i = 0; i < IDS_AT_ONCE; ++i) {
          some[i] = sm90::load_or(ids + at + 32 * i, at + 32 * i < slots, -1);
        }
#pragma unroll
        for (int i = 0; i < IDS_AT_ONCE; ++i) {
          if (more) {
            const bool good = some[i] >= 0 && some[i] <= largest;
            const uint32_t piece = static_cast<uint32_t>((some[i] << pieces_shift) - window);
            const bool here = good && piece < WINDOW;
            if (here) {
              atomicOr(&shared.bits[warp][piece / 32], (pieces_shift ? 3u : 1u) << (piece % 32));
            }
            const uint32_t all_here = __ballot_sync(0xffffffffu, here);
            const uint32_t all_good = __ballot_sync(0xffffffffu, good);
            if (all_here == 0xffffffffu) {
              listed += 32;
            } else {
              const int first_out = __ffs(~all_here) - 1;
              listed += first_out;
              const int next = __shfl_sync(0xffffffffu, some[i], first_out);
              if ((all_good >> first_out & 1) != 0 && lane == 0) {
                shared.next[warp] = next << pieces_shift;
              }
              more = false;
            }
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
        const int first = (window + 32 * thread + bit) * PIECE_KEYS;
        uint32_t places[UNITE_TOKENS];
#pragma unroll
        for (int t = 0; t < UNITE_TOKENS; ++t) {
          places[t] = NO_SLOT;
          if ((bits[t] >> bit & 1) == 0) continue;
          const uint32_t earlier = static_cast<uint32_t>(before[t / 4] >> (16 * (t % 4))) & 0xFFFF;
          const int place = shared.place[t] + static_cast<int>(earlier) + __popc(bits[t] & below);
          const int there = shared.length[t] - first;  // keys from the piece's first on
          if (there > 0) {
            places[t] = place | (there < PIECE_KEYS ? there << SLOT_BITS : 0);
          } else {  // the second half of a last block: nobody multiplies it
            const int64_t row = (static_cast<int64_t>(block) * tokens + t) * p.out_row_stride;
            for (int i = 0; i < PIECE_KEYS; ++i) {
              const int64_t column = row + place * PIECE_KEYS + i;
              if (p.out_is_fp32) store_one(static_cast<float*>(p.out) + column, -INFINITY);
              else store_one(static_cast<bf16*>(p.out) + column, -INFINITY);
            }
          }
        }
        keys[at] = common_start + first;
        places_out[at] = make_uint4(places[0] | places[1] << 16, places[2] | places[3] << 16,
                                    places[4] | places[5] << 16, places[6] | places[7] << 16);
      }
      count += static_cast<int>(total);
      window = NO_MORE;
      for (int t = 0; t < tokens; ++t) window = min(window, shared.next[t]);
      if (window != NO_MORE) window &= ~31;
      __syncthreads();  // everyone has read what the next window overwrites
    }
  }
  const int padded = (count + STEP_PIECES - 1) / STEP_PIECES * STEP_PIECES;
  if (count + thread < padded) {
    keys[count + thread] = p.keys;  // behind the last: zeros
    places_out[count + thread] = make_uint4(~0u, ~0u, ~0u, ~0u);
  }
  if (thread == 0) p.union_counts[block] = count;
  if (length > 0) {
    const int to =
        ((slots << shift) + CANDIDATE_STEP_KEYS - 1) / CANDIDATE_STEP_KEYS * CANDIDATE_STEP_KEYS;
    const int64_t row = token * p.out_row_stride;
    if (p.out_is_fp32) fill_row(static_cast<float*>(p.out) + row, listed << shift, to);
    else fill_row(static_cast<bf16*>(p.out) + row, listed << shift, to);
  }
}

}  // namespace logits
