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
    s.count = s.list_count = s.above_all = s.before = s.placed = s.has_nan = 0;
  }
  clear_bins<BINS>(s);
  reset_spread(s);
  const uint32_t rank = p.blocks > 1 ? device::cluster_rank() : 0;
  const int row = blockIdx.x / p.blocks;
  device::wait_for_previous_kernel();
  const Slice slice = slice_of(p, row, rank);
  fetch_sample(s, slice);
  fetch_first_stages(s, slice, 0);  // by the thread that made the barriers
  __syncthreads();
  uint32_t guess = guess_bound(p, s, slice), turn = 0;
  while (true) {
    turn = collect(p, s, slice, turn, guess);
    const Cut cut = p.blocks > 1 ? cut_of_cluster(p, s, rank) : cut_of_block(p, s, guess);
    if (cut.sure) {
      write_row(p, s, slice, row, rank, cut);
      return;
    }
    if (p.blocks > 1) {
      device::cluster_sync();  // all have read what they need of each other
    } else {
      __syncthreads();
    }
    if (threadIdx.x == 0) s.count = s.list_count = s.above_all = s.before = 0;
    guess = 0;
    fetch_first_stages(s, slice, turn);
    __syncthreads();
  }
}
