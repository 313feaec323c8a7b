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

template <bool CLUSTER, class T>
__device__ __forceinline__ T* of_rank(const Params& p, T* place, uint32_t rank) {
  return CLUSTER && p.blocks > 1 ? device::peer(place, rank) : place;
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

// The sum of the values of all threads before this one; total is that of all.
__device__ __forceinline__ uint32_t block_exclusive(Shared& s, uint32_t value, uint32_t& total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t inclusive = warp_inclusive(value);
  if (lane == 31) s.warp_sums[warp] = inclusive;
  __syncthreads();
  const uint32_t sums = warp_inclusive(lane < WARPS ? s.warp_sums[lane] : 0);
  total = __shfl_sync(FULL_WARP, sums, 31);
  const uint32_t before = __shfl_sync(FULL_WARP, sums, (warp + 31) % 32);
  __syncthreads();
  return (warp > 0 ? before : 0) + inclusive - value;
}

// Find the bin with the element number `wanted` from the top (1 is the largest): s.bin, the number
// of elements in bins above it and in it. Returns the number of all elements; with fewer than
// wanted nothing is found.
template <bool CLUSTER>
__device__ __forceinline__ uint32_t find_bin(const Params& p, Shared& s, uint32_t wanted) {
  constexpr int OWN = BINS / THREADS;
  const int lowest = BINS - OWN * (static_cast<int>(threadIdx.x) + 1);
  uint32_t counts[OWN] = {};
#pragma unroll 1
  for (int rank = 0; rank < (CLUSTER ? p.blocks : 1); ++rank) {
    const uint32_t* bins = of_rank<CLUSTER>(p, &s.histogram[lowest], rank);
#pragma unroll
    for (int i = 0; i < OWN; i += 2) {
      const uint2 pair = *reinterpret_cast<const uint2*>(bins + i);
      counts[i] += pair.x;
      counts[i + 1] += pair.y;
    }
  }
  uint32_t sum = 0, total;
#pragma unroll
  for (int i = 0; i < OWN; ++i) sum += counts[i];
  uint32_t above = block_exclusive(s, sum, total);
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
  Element own = 0;
  if (t < members) {
    uint32_t at = t;
#pragma unroll 1
    for (int rank = 0; rank < p.blocks; ++rank) {
      const uint32_t count = *of_rank<true>(p, &s.list_count, rank);
      if (at < count) {
        own = *of_rank<true>(p, &s.list[at], rank);
        break;
      }
      at -= count;
    }
    s.gathered[t] = own;
  }
  __syncthreads();
  if (t < members) {
    uint32_t larger = 0;
    for (uint32_t i = 0; i < members; ++i) larger += s.gathered[i] > own;
    if (larger == wanted - 1) s.threshold = own;
  }
  __syncthreads();
  return s.threshold;
}

// In place of the k-th largest: candidates may lack some of the k largest.
constexpr Element NOT_ENOUGH = ~Element(0);

// Without CLUSTER: an element that at least k of the block's n candidates (n > k) reach, and at most
// half of CAPACITY or exactly k. With CLUSTER: the k-th largest of the whole row's candidates, 0 if
// there are no more than k, or NOT_ENOUGH if a block's guess was too high to be sure.
template <bool CLUSTER>
__device__ __forceinline__ Element find_threshold(const Params& p, Shared& s, uint32_t n) {
  const uint32_t k = p.k;
  if (threadIdx.x == 0) {
    s.key_min = 0xffffffffu;
    s.key_max = 0;
  }
  __syncthreads();
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
  uint32_t guess = s.guess;
  if (CLUSTER) {
    uint32_t total = s.count;
    if (p.blocks > 1) {
      total = 0;
#pragma unroll 1
      for (int rank = 0; rank < p.blocks; ++rank) {
        total += *device::peer(&s.count, rank);
        least = min(least, *device::peer(&s.key_min, rank));
        most = max(most, *device::peer(&s.key_max, rank));
        guess = max(guess, *device::peer(&s.guess, rank));
      }
    }
    if (total <= k) return guess == 0 ? 0 : NOT_ENOUGH;
  }
  const Element surely = CLUSTER ? Element(guess) << p.column_bits : 0;
  Element low = Element(least) << p.column_bits;
  Element high = ((Element(most) + 1) << p.column_bits) - 1;
  uint32_t wanted = k;
#pragma unroll 1
  while (true) {
    const int shift = max(0, 64 - __clzll(static_cast<long long>(high - low)) - BIN_BITS);
    clear_histogram(s);
    __syncthreads();
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
  }
}
