// Find the element that cuts off the k largest, among a block's candidates or a cluster's.
#pragma once

// Wait for all threads that work on the row.
template <bool CLUSTER>
__device__ __forceinline__ void sync_row(const Params& p) {
  if (CLUSTER && p.blocks > 1) {
    device::cluster_sync();
  } else {
    __syncthreads();
  }
}

__device__ __forceinline__ uint32_t warp_inclusive(uint32_t value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(FULL_WARP, value, step);
    if (lane >= step) value += below;
  }
  return value;
}

// The sum of the values of all threads before this one; total is that of all. Between two uses of the
// same `sums` the block waits elsewhere.
__device__ __forceinline__ uint32_t block_exclusive(uint32_t (&sums)[32], uint32_t value,
                                                    uint32_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t inclusive = warp_inclusive(value);
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  const uint32_t of_warps = warp_inclusive(lane < WARPS ? sums[lane] : 0);
  total = __shfl_sync(FULL_WARP, of_warps, 31);
  const uint32_t before = __shfl_sync(FULL_WARP, of_warps, (warp + 31) % 32);
  return (warp > 0 ? before : 0) + inclusive - value;
}

// What the blocks of the row hold at a place, block r's in lane r; `otherwise` in the other lanes.
__device__ __forceinline__ uint32_t of_blocks(const Params& p, uint32_t* place, uint32_t otherwise) {
  const int lane = threadIdx.x % 32;
  if (lane >= p.blocks) return otherwise;
  return p.blocks > 1 ? *device::peer(place, lane) : *place;
}

template <int BLOCKS, int OWN>
__device__ __forceinline__ void add_bins(uint32_t* bins, uint32_t (&counts)[OWN]) {
  uint2 pairs[BLOCKS][OWN / 2];
#pragma unroll
  for (int rank = 0; rank < BLOCKS; ++rank) {
    const uint32_t* theirs = BLOCKS > 1 ? device::peer(bins, rank) : bins;
#pragma unroll
    for (int i = 0; i < OWN / 2; ++i) pairs[rank][i] = reinterpret_cast<const uint2*>(theirs)[i];
  }
#pragma unroll
  for (int rank = 0; rank < BLOCKS; ++rank) {
#pragma unroll
    for (int i = 0; i < OWN / 2; ++i) {
      counts[2 * i] += pairs[rank][i].x;
      counts[2 * i + 1] += pairs[rank][i].y;
    }
  }
}

// Find the bin with the element number `wanted` from the top (1 is the largest): s.bin, the number
// of elements in bins above it and in it. Returns the number of all elements; with fewer than
// wanted nothing is found.
template <bool CLUSTER>
__device__ __forceinline__ uint32_t find_bin(const Params& p, Shared& s, uint32_t wanted) {
  constexpr int OWN = BINS / THREADS;
  const int lowest = BINS - OWN * (static_cast<int>(threadIdx.x) + 1);
  uint32_t counts[OWN] = {};
  uint32_t* bins = &s.histogram[lowest];
  if (!CLUSTER || p.blocks == 1) {
    add_bins<1>(bins, counts);
  } else if (p.blocks == 2) {
    add_bins<2>(bins, counts);
  } else if (p.blocks == 4) {
    add_bins<4>(bins, counts);
  } else {
    add_bins<8>(bins, counts);
  }
  uint32_t sum = 0, total;
#pragma unroll
  for (int i = 0; i < OWN; ++i) sum += counts[i];
  uint32_t above = block_exclusive(s.warp_sums[0], sum, total);
  if (above < wanted && wanted <= above + sum) {
    bool found = false;
#pragma unroll
    for (int i = OWN - 1; i >= 0; --i) {
      if (!found && above + counts[i] >= wanted) {
        found = true;
        s.bin = lowest + i;
        s.above = above;
        s.members = counts[i];
      }
      above += counts[i];
    }
  }
  __syncthreads();
  return total;
}

__device__ __forceinline__ void clear_histogram(Shared& s) {
  for (int i = threadIdx.x; i < BINS; i += THREADS) s.histogram[i] = 0;
}

// Leave the least and the most of all threads' keys in s.key_min, s.key_max. The caller has waited
// for s.key_min to be all ones and s.key_max 0, and waits for the result.
__device__ __forceinline__ void spread_of(Shared& s, uint32_t least, uint32_t most) {
  least = __reduce_min_sync(FULL_WARP, least);
  most = __reduce_max_sync(FULL_WARP, most);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&s.key_min, least);
    atomicMax(&s.key_max, most);
  }
}

// The element number `wanted` from the top of the few in low .. high of all the row's candidates.
__device__ __forceinline__ Element rank_few(const Params& p, Shared& s, uint32_t n, Element low,
                                            Element high, uint32_t members, uint32_t wanted) {
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const Element c = s.candidates[i];
    if (c >= low && c <= high) s.list[atomicAdd(&s.list_count, 1u)] = c;
  }
  sync_row<true>(p);
  const uint32_t t = threadIdx.x;
  const Element* few = s.list;
  if (p.blocks > 1) {
    const uint32_t ends = warp_inclusive(of_blocks(p, &s.list_count, 0));
    uint32_t rank = 0, start = 0;
    for (int other = 0; other < MOST_BLOCKS - 1; ++other) {
      const uint32_t end = __shfl_sync(FULL_WARP, ends, other);
      if (t >= end) {
        rank = other + 1;
        start = end;
      }
    }
    if (t < members) s.gathered[t] = *device::peer(&s.list[t - start], rank);
    few = s.gathered;
    __syncthreads();
  }
  if (t < members) {
    const Element own = few[t];
    uint32_t larger = 0;
#pragma unroll 4
    for (uint32_t i = 0; i < members; ++i) larger += few[i] > own;
    if (larger == wanted - 1) s.threshold = own;
  }
  __syncthreads();
  return s.threshold;
}

// In place of the k-th largest: candidates may lack some of the k largest.
constexpr Element NOT_ENOUGH = ~Element(0);

__device__ __forceinline__ void reset_spread(Shared& s) {
  if (threadIdx.x == 0) {
    s.key_min = 0xffffffffu;
    s.key_max = 0;
  }
}

// Without CLUSTER: an element that at least k of the block's n candidates (n > k) reach, and at most
// half of CAPACITY or exactly k. With CLUSTER: the k-th largest of the whole row's candidates, 0 if
// there are no more than k, or NOT_ENOUGH if a block's guess was too high to be sure. The histogram is
// clear and the spread reset.
template <bool CLUSTER>
__device__ __forceinline__ Element find_threshold(const Params& p, Shared& s, uint32_t n) {
  const uint32_t k = p.k;
  uint32_t least = 0xffffffffu, most = 0;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const uint32_t key = static_cast<uint32_t>(s.candidates[i] >> p.column_bits);
    least = min(least, key);
    most = max(most, key);
  }
  spread_of(s, least, most);
  sync_row<CLUSTER>(p);
  least = s.key_min;
  most = s.key_max;
  Element surely = 0;  // all elements of the row from here on are candidates
  if (CLUSTER) {
    uint32_t total = s.count, guess = s.guess;
    if (p.blocks > 1) {
      total = of_blocks(p, &s.count, 0);
      guess = of_blocks(p, &s.guess, 0);
      least = of_blocks(p, &s.key_min, 0xffffffffu);
      most = of_blocks(p, &s.key_max, 0);
      total = __reduce_add_sync(FULL_WARP, total);
      guess = __reduce_max_sync(FULL_WARP, guess);
      least = __reduce_min_sync(FULL_WARP, least);
      most = __reduce_max_sync(FULL_WARP, most);
    }
    if (total <= k) return guess == 0 ? 0 : NOT_ENOUGH;
    surely = Element(guess) << p.column_bits;
  }
  Element low = Element(least) << p.column_bits;
  Element high = ((Element(most) + 1) << p.column_bits) - 1;
  uint32_t wanted = k;
#pragma unroll 1
  while (true) {
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - BIN_BITS);
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
      const Element c = s.candidates[i];
      if (c >= low && c <= high) atomicAdd(&s.histogram[(c - low) >> shift], 1u);
    }
    sync_row<CLUSTER>(p);
    find_bin<CLUSTER>(p, s, wanted);
    const uint32_t above = s.above, members = s.members;
    low += Element(s.bin) << shift;
    high = min(high, low + (Element(1) << shift) - 1);
    if (CLUSTER && high < surely) return NOT_ENOUGH;
    if (members == wanted - above && low >= surely) return low;
    if (shift == 0) return NOT_ENOUGH;
    if (!CLUSTER && k - wanted + above + members <= CAPACITY / 2) return low;
    wanted -= above;
    if (CLUSTER && members <= LIST) {
      const Element found = rank_few(p, s, n, low, high, members, wanted);
      return found >= surely ? found : NOT_ENOUGH;
    }
    sync_row<CLUSTER>(p);  // all have read the histograms, s.bin and what goes with it
    clear_histogram(s);
    __syncthreads();
  }
}
