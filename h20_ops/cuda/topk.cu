// The k largest elements of each row: exact, ties to the lower column, NaN never.
//
// A row is read once, by one block or by the blocks of a cluster, through a ring of bulk copies. A
// block keeps elements above a bound in shared memory; when they fill it, it raises the bound to one
// that at least k of them reach and drops the rest. The k-th largest of what all blocks of a row have
// left then cuts off the result. The first bound is guessed from a sample of the slice; if what was
// left out because of it may have belonged to the result, the row is read again without a guess. Selections count elements in bins between their least and
// largest, so that they need one or two rounds however concentrated the values are.
//
// Compiled with IS_BF16 (0: fp32), BLOCK_THREADS, RING_STAGES and RING_STAGE_BYTES, HISTOGRAM_BITS,
// CANDIDATES (more than k, by a quarter or more) and BLOCKS_PER_SM.
#include <cstdint>

#ifndef TOPK_ON_HOST
#include "topk_device.cuh"
#endif
#include "topk_layout.cuh"
#include "topk_select.cuh"
#include "topk_stream.cuh"
#include "topk_output.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK_THREADS, BLOCKS_PER_SM)
    topk(const __grid_constant__ Params p) {
  Shared& s = *static_cast<Shared*>(device::shared_memory());
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) device::barrier_init(&s.full[i]);
    device::barrier_init_fence();
  }
  const uint32_t rank = p.blocks > 1 ? device::cluster_rank() : 0;
  device::wait_for_previous_kernel();
  uint32_t turn = 0;
  int row = blockIdx.x / p.blocks;
  bool guessing = true;
  fetch_first_stages(s, slice_of(p, row, rank), turn);  // by the thread that made the barriers
  fetch_sample(s, slice_of(p, row, rank));
#pragma unroll 1
  while (row < p.rows) {
    const Slice slice = slice_of(p, row, rank);
    clear_histogram(s);
    reset_spread(s);
    if (threadIdx.x == 0) {
      s.count = s.list_count = s.chosen = s.placed = s.has_nan = s.guess = 0;
    }
    __syncthreads();
    const uint32_t guess = guessing ? guess_bound(p, s, slice) : 0;
    turn = collect(p, s, slice, turn, guess);
    if (threadIdx.x == 0) s.guess = guess;
    const int next = row + gridDim.x / p.blocks;
    if (next < p.rows) {
      fetch_first_stages(s, slice_of(p, next, rank), turn);
      fetch_sample(s, slice_of(p, next, rank));
    }
    const Element bound = find_threshold<true>(p, s, s.count);
    guessing = bound != NOT_ENOUGH;
    if (guessing) {
      write_row(p, s, row, rank, bound);
      row = next;
    } else if (next < p.rows) {
      turn = drop_first_stages(s, slice_of(p, next, rank), turn);
    }
    sync_row<true>(p);  // nobody goes on while others read its shared memory
    if (!guessing) fetch_first_stages(s, slice_of(p, row, rank), turn);
  }
}
