// Write a row's chosen elements: by ascending column, or by descending value.
#pragma once

struct Row {
  int row;
  int offset;
  const void* input;
};

__device__ __forceinline__ void write_place(const Params& p, const Row& r, uint32_t place,
                                            uint32_t column) {
  const int64_t at = r.row * p.index_stride + place;
  const int64_t index = static_cast<int64_t>(column) + r.offset;
  if (p.wide) {
    static_cast<int64_t*>(p.indices)[at] = index;
  } else {
    static_cast<int32_t*>(p.indices)[at] = static_cast<int32_t>(index);
  }
  if (p.values != nullptr) {
    const int64_t to = static_cast<int64_t>(r.row) * p.k + place;
    if (BF16) {
      static_cast<uint16_t*>(p.values)[to] = static_cast<const uint16_t*>(r.input)[column];
    } else {
      static_cast<uint32_t*>(p.values)[to] = static_cast<const uint32_t*>(r.input)[column];
    }
  }
}

__device__ __forceinline__ void write_fill(const Params& p, const Row& r, uint32_t found) {
  for (uint32_t place = found + threadIdx.x; place < static_cast<uint32_t>(p.k); place += THREADS) {
    const int64_t at = r.row * p.index_stride + place;
    if (p.wide) {
      static_cast<int64_t*>(p.indices)[at] = p.index_fill;
    } else {
      static_cast<int32_t*>(p.indices)[at] = static_cast<int32_t>(p.index_fill);
    }
    if (p.values != nullptr) {
      const int64_t to = static_cast<int64_t>(r.row) * p.k + place;
      if (BF16) {
        static_cast<uint16_t*>(p.values)[to] = static_cast<uint16_t>(p.value_fill);
      } else {
        static_cast<uint32_t*>(p.values)[to] = p.value_fill;
      }
    }
  }
}

// Mark chosen columns as bits and write them in order from `place` on. Every block writes its own.
__device__ __forceinline__ void write_by_column(const Params& p, Shared& s, const Row& r,
                                                const Slice& slice, Element bound, uint32_t n,
                                                uint32_t place) {
  constexpr int SEGMENT = BITMAP_WORDS * 32;
  const int from = max(column_at(slice, slice.first), 0);
  const int to = min(column_at(slice, slice.last), slice.end);
  for (int start = from; start < to; start += SEGMENT) {
    const int words = (min(SEGMENT, to - start) + 31) / 32;
    const int own = (words + THREADS - 1) / THREADS;
    for (int i = threadIdx.x; i < words; i += THREADS) s.bitmap[i] = 0;
    __syncthreads();
#pragma unroll 2
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
      const Element c = s.candidates[i];
      const uint32_t at = column_of(p, c) - static_cast<uint32_t>(start);
      if (c >= bound && at < static_cast<uint32_t>(SEGMENT)) {
        atomicOr(&s.bitmap[at / 32], 1u << (at % 32));
      }
    }
    __syncthreads();
    const int first = threadIdx.x * own;
    uint32_t bits = 0, total;
#pragma unroll 1
    for (int i = first; i < min(first + own, words); ++i) bits += __popc(s.bitmap[i]);
    uint32_t next = place + block_exclusive(s.warp_sums[1], bits, total);
#pragma unroll 1
    for (int i = first; i < min(first + own, words); ++i) {
#pragma unroll 1
      for (uint32_t word = s.bitmap[i]; word != 0; word &= word - 1) {
        write_place(p, r, next++, start + i * 32 + __ffs(word) - 1);
      }
    }
    place += total;
    if (start + SEGMENT < to) __syncthreads();
  }
}

// Bring all chosen elements to the first block's ring, sort them there and write them. All blocks of
// the row have read their slices.
__device__ __forceinline__ void write_by_value(const Params& p, Shared& s, const Row& r, const Cut& cut,
                                               uint32_t n, uint32_t rank) {
  Element* sorted = reinterpret_cast<Element*>(&s.ring[0][0]);
  Element* target = p.blocks > 1 ? device::peer(sorted, 0) : sorted;
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    const Element c = s.candidates[i];
    if (c >= cut.bound) target[cut.place + atomicAdd(&s.placed, 1u)] = c;
  }
  uint32_t length = 2;
  while (length < cut.found) length *= 2;
  if (rank == 0) {
    for (uint32_t i = cut.found + threadIdx.x; i < length; i += THREADS) sorted[i] = 0;
  }
  if (p.blocks > 1) {
    device::cluster_sync();
  } else {
    __syncthreads();
  }
  if (rank != 0) return;
  for (uint32_t size = 2; size <= length; size *= 2) {
    for (uint32_t step = size / 2; step > 0; step /= 2) {
      for (uint32_t i = threadIdx.x; i < length / 2; i += THREADS) {
        const uint32_t a = 2 * i - (i & (step - 1)), b = a + step;
        const Element x = sorted[a], y = sorted[b];
        if ((x < y) == ((a & size) == 0)) {
          sorted[a] = y;
          sorted[b] = x;
        }
      }
      __syncthreads();
    }
  }
  for (uint32_t i = threadIdx.x; i < cut.found; i += THREADS) {
    write_place(p, r, i, column_of(p, sorted[i]));
  }
}

__device__ __forceinline__ void write_row(const Params& p, Shared& s, const Slice& slice, int row,
                                          uint32_t rank, const Cut& cut) {
  constexpr int BYTES = BF16 ? 2 : 4;
  Row r;
  r.row = row;
  r.offset = p.offset == nullptr ? 0 : p.offset[row];
  r.input = static_cast<const char*>(p.input) + row * p.row_stride * BYTES;
  if (rank == 0) {
    write_fill(p, r, cut.found);
    if (threadIdx.x == 0 && p.nan_rows != nullptr) p.nan_rows[row] = cut.nan;
  }
  if (p.sorted) {
    write_by_value(p, s, r, cut, s.count, rank);
    return;
  }
  if (p.blocks > 1) device::cluster_arrive();  // this block has read what it needs of the others
  write_by_column(p, s, r, slice, cut.bound, s.count, cut.place);
  if (p.blocks > 1) device::cluster_wait();
}
