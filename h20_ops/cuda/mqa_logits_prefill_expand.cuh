// The launch before the logits: FP4 rows to e4m3 tiles, weights with the powers of two of their heads,
// and the plan of which CTA walks which keys.
#pragma once

#include "mqa_logits_prefill_layout.cuh"

namespace logits {

struct ExpandShared {
  // Of each row's power of two, NO_EXPONENT for a row of zeros.
  int exponents[TOKENS * 2 * HEADS];
  int token_exponent[TOKENS];
  int ends[CACHED_ENDS];
  int warp_totals[EXPAND_THREADS / 32];
  int carry;
};
constexpr int NO_EXPONENT = -1000, NAN_ROW = 1000;

__device__ __forceinline__ int largest_of_four(int value) {
  value = max(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return max(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// 64 keys, four threads each.
__device__ __forceinline__ void expand_keys(const Params& p, int tile) {
  const int local = threadIdx.x >> 2, group = threadIdx.x & 3;
  const int key = tile * TILE_KEYS + local;
  const bool there = key < p.keys;
  uint4 codes = make_uint4(0, 0, 0, 0);
  uint32_t exponents = 0;
  if (there) {
    codes = __ldg(reinterpret_cast<const uint4*>(p.k + key * p.k_row_stride) + group);
    exponents = static_cast<uint32_t>(__ldg(p.k_sf + key * p.k_sf_stride));
  }
  const uint32_t exponent = (exponents >> (8 * group)) & 255;
  const int largest = largest_of_four(fp4::group_exponent(codes, exponent));
  uint4 first, second;
  fp4::expand32(codes, exponent, fp4::group_shift(exponent, largest), first, second);
  uint8_t* target = p.k_tiles + static_cast<int64_t>(tile) * KEY_TILE_BYTES;
  // The tensor copies of pieces swizzle on their way; whole tiles are copied as they are.
  const bool plain = p.kind == UNITED;
  const int row = tile_row_of_key(local), at = local * ROW_BYTES + 32 * group;
  *reinterpret_cast<uint4*>(target + (plain ? at : swizzled(row, 2 * group))) = first;
  *reinterpret_cast<uint4*>(target + (plain ? at + 16 : swizzled(row, 2 * group + 1))) = second;
  if (group == 0) {
    const int biased = there ? fp4::row_exponent(largest) + KEY_BIAS : 0;
    p.k_scale[key] = static_cast<uint32_t>(biased) << 23;
  }
}

// The heads of four tokens, four threads a head.
__device__ __forceinline__ void expand_queries(const Params& p, int group_of_tokens,
                                               ExpandShared& shared) {
  const int halves = p.heads > HEADS ? 2 : 1, heads = HEADS * halves;
  const int token_0 = group_of_tokens * TOKENS;
  const bool dense = p.kind != GATHERED;
  const int group = threadIdx.x & 3;
  for (int job = threadIdx.x; job < TOKENS * heads * 4; job += EXPAND_THREADS) {
    const int t = (job >> 2) / heads, head = (job >> 2) % heads;
    const int64_t token = token_0 + t;
    uint4 codes = make_uint4(0, 0, 0, 0);
    uint32_t exponents = 0;
    if (token < p.rows && head < p.heads) {
      const uint8_t* row = p.q + token * p.q_row_stride + head * p.q_head_stride;
      codes = __ldg(reinterpret_cast<const uint4*>(row) + group);
      exponents = static_cast<uint32_t>(
          __ldg(p.q_sf + token * p.q_sf_row_stride + head * p.q_sf_head_stride));
    }
    const uint32_t exponent = (exponents >> (8 * group)) & 255;
    const int largest = largest_of_four(fp4::group_exponent(codes, exponent));
    uint4 first, second;
    fp4::expand32(codes, exponent, fp4::group_shift(exponent, largest), first, second);
    uint8_t* target;
    int row;
    if (dense) {
      const int c = head % 8 / 2, o = 2 * (head % HEADS / 8) + head % 2, i = 8 * c + o;
      row = 8 * (i / 2) + 2 * t + i % 2;
      target = p.q_tiles + (static_cast<int64_t>(group_of_tokens) * halves + head / HEADS) * Q_TILE_BYTES;
    } else {
      row = head;
      target = p.q_tiles + token * heads * ROW_BYTES;
    }
    if (dense || token < p.rows) {
      *reinterpret_cast<uint4*>(target + swizzled(row, 2 * group)) = first;
      *reinterpret_cast<uint4*>(target + swizzled(row, 2 * group + 1)) = second;
    }
    const bool nan = largest_of_four(exponent == fp4::NAN_EXPONENT) != 0;
    if (group == 0) {
      shared.exponents[t * heads + head] =
          nan ? NAN_ROW : largest < 0 ? NO_EXPONENT : fp4::row_exponent(largest);
    }
  }
  __syncthreads();
  if (threadIdx.x < TOKENS * 32) {  // a warp per token
    const int t = threadIdx.x / 32, lane = threadIdx.x % 32;
    int largest = shared.exponents[t * heads + lane];
    if (halves == 2) largest = max(largest, shared.exponents[t * heads + 32 + lane]);
    largest = __reduce_max_sync(0xffffffffu, largest);
    if (lane == 0) shared.token_exponent[t] = abs(largest) == NAN_ROW ? 0 : largest;
  }
  __syncthreads();
  for (int job = threadIdx.x; job < TOKENS * heads; job += EXPAND_THREADS) {
    const int t = job / heads, head = job % heads;
    const int64_t token = token_0 + t;
    const int c = head % 8 / 2, o = 2 * (head / 8) + head % 2;  // o up to 15 of 64 heads
    float weight = 0.0f;
    if (token < p.rows && head < p.heads) {
      weight = __bfloat162float(p.weights[token * p.weights_row_stride + head]);
      const int exponent = shared.exponents[job], by_relu = saturates(o) ? 0 : COMPARED_EXPONENT;
      if (exponent == NAN_ROW) weight = NAN;
      else if (exponent != NO_EXPONENT) {
        weight = ldexpf(weight, exponent - shared.token_exponent[t] + by_relu);
      }
    }
    if (dense) {
      DenseMeta* meta = reinterpret_cast<DenseMeta*>(p.q_meta) +
                        static_cast<int64_t>(group_of_tokens) * halves + head / HEADS;
      meta->weights[t][8 * c + o % 8] = weight;
    } else if (token < p.rows) {
      reinterpret_cast<CandidateMeta*>(p.q_meta)[token].weights[8 * halves * c + o] = weight;
    }
  }
  if (threadIdx.x < TOKENS) {
    const int64_t token = token_0 + threadIdx.x;
    RowInfo info{0, 0, 0, 0, 0};
    if (token < p.rows) {
      info.offset = token * p.out_row_stride;
      info.start = p.ks[token];
      info.length = row_length(p, info.start, p.ke[token]);
      if (info.length > 0) {
        const int end = info.start + info.length;
        const int tiles_end = (end + STEP_KEYS - 1) / STEP_KEYS * STEP_KEYS;
        info.stop = min(p.padded_columns, tiles_end - info.start);
      }
      info.scale = (shared.token_exponent[threadIdx.x] - COMPARED_EXPONENT + TOKEN_BIAS) * (1 << 23);
    }
    if (dense) {
      for (int half = 0; half < halves; ++half) {
        DenseMeta* meta = reinterpret_cast<DenseMeta*>(p.q_meta) +
                          static_cast<int64_t>(group_of_tokens) * halves + half;
        meta->rows[threadIdx.x] = info;
      }
    } else if (token < p.rows) {
      reinterpret_cast<CandidateMeta*>(p.q_meta)[token].row = info;
    }
  }
}

// One CTA: the steps of keys each block of rows needs, and where each CTA of the main launch begins so
// that all walk the same number of steps.
__device__ __forceinline__ void plan(const Params& p, ExpandShared& shared) {
  const int tokens = p.heads > HEADS ? TOKENS : 2 * TOKENS;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int* ends = p.row_blocks <= CACHED_ENDS ? shared.ends : p.ends;
  if (threadIdx.x == 0) shared.carry = 0;
  __syncthreads();
  for (int base = 0; base < p.row_blocks; base += EXPAND_THREADS) {
    const int block = base + threadIdx.x;
    int first = 0x7fffffff, last = 0;
    if (block < p.row_blocks) {
#pragma unroll
      for (int i = 0; i < 2 * TOKENS; ++i) {
        const int64_t token = static_cast<int64_t>(block) * tokens + i;
        if (i >= tokens || token >= p.rows) break;
        const int start = __ldg(p.ks + token);
        const int length = row_length(p, start, __ldg(p.ke + token));
        if (length > 0) {
          first = min(first, start / STEP_KEYS);
          last = max(last, (start + length + STEP_KEYS - 1) / STEP_KEYS);
        }
      }
    }
    const int count = max(0, last - min(first, last));
    int sum = count;
#pragma unroll
    for (int offset = 1; offset < 32; offset *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == 31) shared.warp_totals[warp] = sum;
    __syncthreads();
    int before = shared.carry;
    for (int i = 0; i < warp; ++i) before += shared.warp_totals[i];
    if (block < p.row_blocks) {
      p.ranges[block] = make_int2(count > 0 ? first : 0, count);
      ends[block] = before + sum;
    }
    __syncthreads();
    if (threadIdx.x == EXPAND_THREADS - 1) shared.carry = before + sum;
    __syncthreads();
  }
  const int total = shared.carry;
  if (threadIdx.x == 0) *p.total = total;
  for (int cta = threadIdx.x; cta < p.main_grid; cta += EXPAND_THREADS) {
    const int begin = static_cast<int>(static_cast<int64_t>(total) * cta / p.main_grid);
    int low = 0, high = p.row_blocks;  // the first block of rows whose end lies behind `begin`
    while (low < high) {
      const int middle = (low + high) / 2;
      if (ends[middle] > begin) high = middle;
      else low = middle + 1;
    }
    p.starts[cta] = make_int2(low, begin - (low > 0 ? ends[low - 1] : 0));
  }
}

}  // namespace logits
