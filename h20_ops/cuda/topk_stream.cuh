// Read a slice once and keep candidates: the block's k largest elements are among them.
#pragma once

constexpr int TOGETHER = CAPACITY / THREADS % 4 == 0 ? 4 : CAPACITY / THREADS % 2 == 0 ? 2 : 1;

// Drop candidates that k others exceed, and return a bound that what is kept reaches. CAPACITY
// candidates are there.
__device__ __forceinline__ Element compact(const Params& p, Shared& s) {
  const Element bound = rough_bound(p, s, CAPACITY);
  if (threadIdx.x == 0) s.count = 0;
#pragma unroll 1
  for (int start = 0; start < CAPACITY; start += TOGETHER * THREADS) {
    Element own[TOGETHER];
    uint32_t kept = 0;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      own[i] = s.candidates[start + threadIdx.x + i * THREADS];
      kept += own[i] >= bound;
    }
    __syncthreads();  // what is kept goes to places that have been read
    uint32_t place = kept > 0 ? device::add_shared(&s.count, kept) : 0;
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      if (own[i] >= bound) s.candidates[place++] = own[i];
    }
  }
  __syncthreads();
  return bound;
}

// Which of this thread's elements of a stage reach `least`, one bit each in the order of its vectors.
__device__ __forceinline__ uint32_t elements_at_least(const uint4* stage, float least, bool& nan) {
  uint32_t reached = 0;
#pragma unroll
  for (int v = 0; v < THREAD_VECTORS; ++v) {
    const uint4 vector = stage[threadIdx.x + v * THREADS];
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if (BF16) {
        const float x = __uint_as_float(words[w] << 16);
        const float y = __uint_as_float(words[w] & 0xffff0000u);
        if (x >= least) reached |= 1u << (v * 8 + w * 2);
        if (y >= least) reached |= 1u << (v * 8 + w * 2 + 1);
        nan |= x != x;
        nan |= y != y;
      } else {
        const float x = __uint_as_float(words[w]);
        if (x >= least) reached |= 1u << (v * 4 + w);
        nan |= x != x;
      }
    }
  }
  return reached;
}

// The position in a stage of the element that bit `bit` stands for.
__device__ __forceinline__ int position_of(uint32_t bit) {
  const uint32_t vector = threadIdx.x + bit / VECTOR_ELEMENTS * THREADS;
  return vector * VECTOR_ELEMENTS + bit % VECTOR_ELEMENTS;
}

// The same for a stage with elements that do not count; first_column is that of its first element.
__device__ __forceinline__ uint32_t edge_elements_at_least(const uint4* stage, float least, bool& nan,
                                                           int first_column, int vectors, int end) {
  uint32_t reached = 0;
#pragma unroll 1
  for (int bit = 0; bit < THREAD_VECTORS * VECTOR_ELEMENTS; ++bit) {
    const int position = position_of(bit);
    const int column = first_column + position;
    if (position < vectors * VECTOR_ELEMENTS && column >= 0 && column < end) {
      const float x = read_element(stage, position);
      if (x >= least) reached |= 1u << bit;
      nan |= x != x;
    }
  }
  return reached;
}

// Store the elements that `reached` names while there is room; return those left over.
__device__ __forceinline__ uint32_t push(const Params& p, Shared& s, const uint4* stage,
                                         int first_column, uint32_t reached) {
  if (reached == 0) return 0;
  uint32_t place = device::add_shared(&s.count, __popc(reached));
#pragma unroll 1
  while (reached != 0 && place < CAPACITY) {
    const int position = position_of(__ffs(reached) - 1);
    s.candidates[place++] = element_of(p, read_element(stage, position), first_column + position);
    reached &= reached - 1;
  }
  return reached;
}

// Every how many-th vector of a slice is looked at beforehand; 0 for slices that fit the candidates or are
// shorter than a sample. Odd, so that the sample does not keep step with a pattern of the columns.
__device__ __forceinline__ int sample_stride(const Slice& slice) {
  const int vectors = slice.last - slice.first;
  const int stride = (vectors - 2) / THREADS;
  return vectors * VECTOR_ELEMENTS <= CAPACITY || stride < 1 ? 0 : (stride - 1) | 1;
}

__device__ __forceinline__ void fetch_sample(Shared& s, const Slice& slice) {
  const int stride = sample_stride(slice);
  if (stride > 0) {
    const int own = static_cast<int>(threadIdx.x) * stride;
    device::copy16(&s.sample[threadIdx.x], slice.base + slice.first + 1 + own);
  }
}

// From the slice's sample, a key that k elements of the row reach in all likelihood, few more if values
// are not all alike. 0 if there is no telling. The histogram is clear, s.key_min and s.key_max too.
__device__ __forceinline__ uint32_t guess_bound(const Params& p, Shared& s, const Slice& slice) {
  constexpr int SAMPLE = THREADS * VECTOR_ELEMENTS;
  if (sample_stride(slice) == 0) return 0;
  const float expected = static_cast<float>(p.k) * SAMPLE / slice.end;
  const int wanted = static_cast<int>(expected + 4.0f * sqrtf(expected)) + 3;
  if (wanted > SAMPLE / 2) return 0;
  device::copies_wait();
  const uint4* own = &s.sample[threadIdx.x];
  uint32_t least = 0xffffffffu, most = 0;
#pragma unroll
  for (int i = 0; i < VECTOR_ELEMENTS; ++i) {
    const float x = read_element(own, i);
    const uint32_t key = key_of(x);
    if (x == x) {
      least = min(least, key);
      most = max(most, key);
    }
  }
  spread_of(s, least, most);
  __syncthreads();
  least = s.key_min;
  most = s.key_max;
  const int shift = most > least ? max(0, 32 - __clz(static_cast<int>(most - least)) - BIN_BITS) : 0;
#pragma unroll
  for (int i = 0; i < VECTOR_ELEMENTS; ++i) {
    const float x = read_element(own, i);
    if (x == x) atomicAdd(&s.histogram[(key_of(x) - least) >> shift], 1u);
  }
  __syncthreads();
  if (find_bin<BINS, false>(p, s, wanted) < static_cast<uint32_t>(wanted)) return 0;
  return least + (s.bin << shift);
}

// Ask for one stage's part of a slice; `turn` counts all stages this block has asked for.
__device__ __forceinline__ void fetch_stage(Shared& s, const Slice& slice, int batch, uint32_t turn) {
  const int first = slice.first + batch * STAGE_VECTORS;
  if (threadIdx.x == 0 && first < slice.last) {
    const int vectors = min(STAGE_VECTORS, slice.last - first);
    device::bulk_copy(s.ring[turn % STAGES], slice.base + first, vectors * 16, &s.full[turn % STAGES]);
  }
}

__device__ __forceinline__ void fetch_first_stages(Shared& s, const Slice& slice, uint32_t turn) {
  for (int batch = 0; batch < STAGES; ++batch) fetch_stage(s, slice, batch, turn + batch);
}

// Candidates of the slice, whose first stages have been asked for: elements with a key from `guess` on,
// if it is not 0. Afterwards s.count of them are in shared memory, no more than CAPACITY, the
// first LAST_BINS bins are clear and the spread is reset. Returns the next turn.
__device__ __forceinline__ uint32_t collect(const Params& p, Shared& s, const Slice& slice,
                                            uint32_t turn, uint32_t guess) {
  float least = guess == 0 ? __uint_as_float(0xff800000u) : value_of(guess);
  bool nan = false;
  for (int first = slice.first; first < slice.last; first += STAGE_VECTORS, ++turn) {
    const int vectors = min(STAGE_VECTORS, slice.last - first);
    const int first_column = column_at(slice, first);
    const uint4* stage = s.ring[turn % STAGES];
    device::barrier_wait(&s.full[turn % STAGES], turn / STAGES % 2);
    const bool inner = vectors == STAGE_VECTORS && first_column >= 0 &&
                       first_column + STAGE_VECTORS * VECTOR_ELEMENTS <= slice.end;
    uint32_t left = inner ? elements_at_least(stage, least, nan)
                          : edge_elements_at_least(stage, least, nan, first_column, vectors, slice.end);
    left = push(p, s, stage, first_column, left);
    while (__syncthreads_or(left != 0)) {
      const Element bound = compact(p, s);
#pragma unroll 1
      for (uint32_t rest = left; rest != 0; rest &= rest - 1) {
        const int bit = __ffs(rest) - 1, position = position_of(bit);
        const Element c = element_of(p, read_element(stage, position), first_column + position);
        if (c < bound) left &= ~(1u << bit);
      }
      left = push(p, s, stage, first_column, left);
      // Elements of later stages stand behind all candidates: equal to the bound is not enough.
      least = value_of(static_cast<uint32_t>(bound >> p.column_bits) + 1);
    }
    fetch_stage(s, slice, (first - slice.first) / STAGE_VECTORS + STAGES, turn + STAGES);
  }
  if (nan) s.has_nan = 1;
  if (threadIdx.x == 0) s.guess = guess;
  reset_spread(s);
  clear_bins<LAST_BINS>(s);
  __syncthreads();
  return turn;
}
