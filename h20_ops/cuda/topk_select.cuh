// Find the element that cuts off the k largest, among a block's candidates or a cluster's.
#pragma once

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
  return lane < p.blocks ? *device::peer(place, lane) : otherwise;
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

// Find the bin of the first COUNT ones with the element number `wanted` from the top (1 is the largest):
// s.bin, the number of elements in bins above it and in it. Returns the number of all elements; with
// fewer than wanted nothing is found. CLUSTER: of all blocks' histograms.
template <int COUNT, bool CLUSTER>
__device__ __forceinline__ uint32_t find_bin(const Params& p, Shared& s, uint32_t wanted) {
  constexpr int OWN = COUNT > 2 * THREADS ? COUNT / THREADS : 2;
  const int lowest = COUNT - OWN * (static_cast<int>(threadIdx.x) + 1);
  uint32_t counts[OWN] = {};
  if (lowest >= 0) {
    uint32_t* bins = &s.histogram[lowest];
    if (!CLUSTER) {
      add_bins<1>(bins, counts);
    } else if (p.blocks == 2) {
      add_bins<2>(bins, counts);
    } else if (p.blocks == 4) {
      add_bins<4>(bins, counts);
    } else {
      add_bins<MOST_BLOCKS>(bins, counts);
    }
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

template <int COUNT>
__device__ __forceinline__ void clear_bins(Shared& s) {
  for (int i = threadIdx.x; i < COUNT; i += THREADS) s.histogram[i] = 0;
}

__device__ __forceinline__ void reset_spread(Shared& s) {
  if (threadIdx.x == 0) {
    s.key_min = 0xffffffffu;
    s.key_max = 0;
  }
}

// Leave the least and the most of all threads' keys in s.key_min, s.key_max, which were reset; the
// caller waits for the result.
__device__ __forceinline__ void spread_of(Shared& s, uint32_t least, uint32_t most) {
  least = __reduce_min_sync(FULL_WARP, least);
  most = __reduce_max_sync(FULL_WARP, most);
  if (threadIdx.x % 32 == 0) {
    atomicMin(&s.key_min, least);
    atomicMax(&s.key_max, most);
  }
}

__device__ __forceinline__ void spread_of_candidates(const Params& p, Shared& s, uint32_t n) {
  uint32_t least = 0xffffffffu, most = 0;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const uint32_t key = static_cast<uint32_t>(s.candidates[i] >> p.column_bits);
    least = min(least, key);
    most = max(most, key);
  }
  spread_of(s, least, most);
}

// Elements from low to high, and where to look for one of them: element number `wanted` from the top
// of the range is the k-th largest of all.
struct Range {
  Element low;
  Element high;
  uint32_t wanted;
};

__device__ __forceinline__ Range whole_range(const Params& p, uint32_t least, uint32_t most) {
  Range r;
  r.low = Element(least) << p.column_bits;
  r.high = ((Element(most) + 1) << p.column_bits) - 1;
  r.wanted = p.k;
  return r;
}

// Narrow the range to one of 2^BITS parts of it. Returns the number of elements in it. The histogram is
// clear before.
template <int BITS, bool CLUSTER>
__device__ __forceinline__ uint32_t narrow(const Params& p, Shared& s, uint32_t n, Range& r) {
  const int shift = max(0, 64 - __clzll(static_cast<long long>(r.high - r.low)) - BITS);
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const Element c = s.candidates[i];
    if (c >= r.low && c <= r.high) atomicAdd(&s.histogram[(c - r.low) >> shift], 1u);
  }
  if (CLUSTER) {
    device::cluster_sync();
  } else {
    __syncthreads();
  }
  find_bin<(1 << BITS), CLUSTER>(p, s, r.wanted);
  r.wanted -= s.above;
  r.low += Element(s.bin) << shift;
  r.high = min(r.high, r.low + (Element(1) << shift) - 1);
  return s.members;
}

// An element that at least k of the block's n candidates (n > k) reach, and at most half of CAPACITY
// or exactly k.
__device__ __forceinline__ Element rough_bound(const Params& p, Shared& s, uint32_t n) {
  reset_spread(s);
  clear_bins<BINS>(s);
  __syncthreads();
  spread_of_candidates(p, s, n);
  __syncthreads();
  Range r = whole_range(p, s.key_min, s.key_max);
  while (true) {
    const uint32_t members = narrow<BIN_BITS, false>(p, s, n, r);
    if (members == r.wanted || p.k - r.wanted + members <= CAPACITY / 2) return r.low;
    __syncthreads();
    clear_bins<BINS>(s);
    __syncthreads();
  }
}

// Of `members` listed elements find number `wanted` from the top: s.threshold. The caller waits.
__device__ __forceinline__ bool rank_one(Shared& s, const Element* listed, uint32_t members,
                                         uint32_t wanted) {
  if (threadIdx.x >= members) return false;
  const Element own = listed[threadIdx.x];
  uint32_t larger = 0;
#pragma unroll 4
  for (uint32_t i = 0; i < members; ++i) larger += listed[i] > own;
  if (larger == wanted - 1) s.threshold = own;
  return larger < wanted;
}

// What cuts a row: the result is all candidates from `bound` on, `found` of them in all; this block's
// own go to places from `place` on. Not `sure`: what a guess left out may belong to the result.
struct Cut {
  Element bound;
  uint32_t place;
  uint32_t found;
  bool sure;
  bool nan;
};

// Of a row that one block reads. The histogram's first LAST_BINS bins are clear, the spread is reset.
__device__ __forceinline__ Cut cut_of_block(const Params& p, Shared& s, uint32_t guess) {
  const uint32_t n = s.count;
  Cut cut = {0, 0, n, true, s.has_nan != 0};
  if (n <= static_cast<uint32_t>(p.k)) {
    cut.sure = guess == 0;
    return cut;
  }
  cut.found = p.k;
  spread_of_candidates(p, s, n);
  __syncthreads();
  Range r = whole_range(p, s.key_min, s.key_max);
  while (true) {
    const uint32_t members = narrow<LAST_BITS, false>(p, s, n, r);
    if (members == r.wanted) {
      cut.bound = r.low;
      return cut;
    }
    if (members <= LIST) break;
    __syncthreads();
    clear_bins<LAST_BINS>(s);
    __syncthreads();
  }
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const Element c = s.candidates[i];
    if (c >= r.low && c <= r.high) s.list[atomicAdd(&s.list_count, 1u)] = c;
  }
  __syncthreads();
  rank_one(s, s.list, s.list_count, r.wanted);
  __syncthreads();
  cut.bound = s.threshold;
  return cut;
}

// Of a row that the blocks of a cluster read, each with its own guess.
__device__ __forceinline__ Cut cut_of_cluster(const Params& p, Shared& s, uint32_t rank) {
  const uint32_t lane = threadIdx.x % 32, n = s.count;
  spread_of_candidates(p, s, n);
  device::cluster_sync();
  const uint32_t counts = of_blocks(p, &s.count, 0);
  uint32_t guess = of_blocks(p, &s.guess, 0), nan = of_blocks(p, &s.has_nan, 0);
  uint32_t least = of_blocks(p, &s.key_min, 0xffffffffu), most = of_blocks(p, &s.key_max, 0);
  guess = __reduce_max_sync(FULL_WARP, guess);
  nan = __reduce_max_sync(FULL_WARP, nan);
  least = __reduce_min_sync(FULL_WARP, least);
  most = __reduce_max_sync(FULL_WARP, most);
  Cut cut = {0, 0, 0, true, nan != 0};
  cut.found = __reduce_add_sync(FULL_WARP, counts);
  if (cut.found <= static_cast<uint32_t>(p.k)) {
    cut.place = __reduce_add_sync(FULL_WARP, lane < rank ? counts : 0);
    cut.sure = guess == 0;
    return cut;
  }
  cut.found = p.k;
  Range r = whole_range(p, least, most);
  uint32_t members = narrow<LAST_BITS, true>(p, s, n, r);
  while (members > LIST) {
    device::cluster_sync();  // all have read the histograms
    clear_bins<LAST_BINS>(s);
    __syncthreads();
    members = narrow<LAST_BITS, true>(p, s, n, r);
  }
  uint32_t above = 0;
#pragma unroll 2
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const Element c = s.candidates[i];
    above += c > r.high;
    if (c >= r.low && c <= r.high) s.list[atomicAdd(&s.list_count, 1u)] = c;
  }
  above = __reduce_add_sync(FULL_WARP, above);
  if (lane == 0 && above > 0) atomicAdd(&s.above_all, above);
  device::cluster_sync();
  const uint32_t ends = warp_inclusive(of_blocks(p, &s.list_count, 0));
  const uint32_t above_all = of_blocks(p, &s.above_all, 0);
  uint32_t owner = 0, start = 0;
  for (int other = 0; other < MOST_BLOCKS - 1; ++other) {
    const uint32_t end = __shfl_sync(FULL_WARP, ends, other);
    if (threadIdx.x >= end) {
      owner = other + 1;
      start = end;
    }
  }
  if (threadIdx.x < members) {
    s.gathered[threadIdx.x] = *device::peer(&s.list[threadIdx.x - start], owner);
  }
  __syncthreads();
  const bool chosen = rank_one(s, s.gathered, members, r.wanted);
  if (chosen && owner < rank) atomicAdd(&s.before, 1u);
  __syncthreads();
  cut.bound = s.threshold;
  cut.place = __reduce_add_sync(FULL_WARP, lane < rank ? above_all : 0) + s.before;
  cut.sure = cut.bound >= Element(guess) << p.column_bits;
  return cut;
}
