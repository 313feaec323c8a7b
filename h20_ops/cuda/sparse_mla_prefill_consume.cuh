// What a consumer warpgroup does: SIDE 0 keeps the left half of the output and scores even key blocks,
// SIDE 1 the right half and odd ones.
#pragma once

#include "sparse_mla_prefill_finish.cuh"
#include "sparse_mla_prefill_products.cuh"

namespace prefill {

template <int SIDE>
__device__ __forceinline__ void consume(const Params& p, Shared& shared) {
  const float scale_log2 = p.sm_scale * sm90::LOG2E;
  const int s_kv = p.s_kv;
  const bool leader = threadIdx.x % 32 == 0;
  const uint32_t kv_ready = sm90::shared_address(shared.kv_ready);
  const uint32_t kv_free = sm90::shared_address(shared.kv_free);
  const uint32_t q_ready = sm90::shared_address(&shared.q_ready);
  const uint32_t q_free = sm90::shared_address(&shared.q_free);
  const uint64_t q_tile = sm90::swizzled_tile(sm90::shared_address(shared.q), 0, 1024);
  const uint64_t k_tile = sm90::swizzled_tile(sm90::shared_address(shared.kv), 0, 1024);
  const uint64_t v_tile = sm90::swizzled_tile(sm90::shared_address(shared.kv), TILE_BYTES, 1024);
  // Tiles 0 and 1 hold probabilities of even blocks by turns, tile 2 those of odd blocks.
  const uint64_t p_tile = sm90::swizzled_tile(sm90::shared_address(shared.p), 0, 1024);
  const uint32_t own_p = sm90::shared_address(shared.p);
  constexpr uint64_t HALF_STEP = HALF_BYTES >> 4;
  constexpr int OWN = 2 * SIDE + SIDE;             // own key block, own half
  constexpr int OWN_FAR = 2 * SIDE + (1 - SIDE);   // own key block, the other's half
  constexpr int OTHER = 2 * (1 - SIDE) + SIDE;     // the other's key block, own half

  float o[128], s[32], top[2], factor[2] = {1.0f, 1.0f};
  uint32_t probabilities[16];
  uint32_t parity_own = 0, parity_other = 0, parity_q = 0;
  int buffer = 0, turn = 0;
  Row row;
  KeyIndices keys;
  Work work = describe(p, blockIdx.x);

  const auto free_other = [&] {
    if (leader) sm90::mbarrier_arrive(kv_free + 8 * OTHER);
  };
  const auto end_other = [&] {
    sm90::wgmma_wait<0>();
    sm90::pin(o);
    free_other();
  };
  // Start the logits of one own key block. If products with the other's block are `running`, free
  // what they read once a little of this is queued behind them.
  const auto start_score = [&](bool running) {
    bool owing = running;
    uint64_t q_base = q_tile, k_base = k_tile;
    sm90::pin(q_base);
    sm90::pin(k_base);
    const uint64_t q_near = q_base + SIDE * HALF_STEP, k_near = k_base + OWN * HALF_STEP;
    const uint64_t q_far = q_base + (1 - SIDE) * HALF_STEP, k_far = k_base + OWN_FAR * HALF_STEP;
    constexpr uint64_t TILE_STEP = TILE_BYTES >> 4;
    if (running && !(sm90::mbarrier_test(kv_ready + 8 * OWN, parity_own) &&
                     sm90::mbarrier_test(kv_ready + 8 * OWN_FAR, parity_own))) {
      end_other();  // nothing to queue yet: do not hold back the next copies
      owing = false;
    }
    sm90::mbarrier_wait(kv_ready + 8 * OWN, parity_own);
    sm90::mbarrier_wait(kv_ready + 8 * OWN_FAR, parity_own);
    sm90::fence_async_proxy();
    sm90::pin(s);
    sm90::wgmma_fence();
    score_tiles<1>(s, q_near, k_near, true);
    if (running) {
      sm90::wgmma_commit();
      sm90::wgmma_wait<1>();
      sm90::pin(o);
      if (owing) free_other();
    }
    score_tiles<3>(s, q_near + TILE_STEP, k_near + TILE_STEP, false);
    score_tiles<4>(s, q_far, k_far, false);
    sm90::wgmma_commit();
  };
  const auto end_score = [&] {
    sm90::wgmma_wait<0>();
    sm90::pin(s);
  };
  const auto look_at_scores = [&](int block) {
    if (block + 2 >= work.blocks && leader) sm90::mbarrier_arrive(q_free);
    mask_and_top(s, top, row, key_mask(keys, s_kv));
    keys = load_keys(work.indices, (block + 2) * KEYS, work.count);
  };
  const auto start_other = [&] {  // leaves the products with the other's key block in flight
    sm90::mbarrier_wait(kv_ready + 8 * OTHER, parity_other);
    sm90::fence_async_proxy();
    parity_other ^= 1;
    sm90::named_sync<SIDE == 0 ? SECOND_P_READY : FIRST_P_READY, CONSUMERS>();
    take_reference(o, row, shared.reference[1 - SIDE]);
    sm90::pin(o);
    sm90::wgmma_fence();
    const int tile = SIDE == 0 ? 2 : turn;
    add_other_values(o, p_tile + tile * (TILE_BYTES >> 4), v_tile + OTHER * HALF_STEP);
    sm90::wgmma_commit();
  };
  const auto give = [&] {
    const int tile = SIDE == 0 ? turn : 2;
    hand_over(own_p + tile * TILE_BYTES, shared.reference[SIDE], probabilities, row);
    sm90::named_arrive<SIDE == 0 ? FIRST_P_READY : SECOND_P_READY, CONSUMERS>();
  };
  const auto add_own = [&] {
    rescale_output(o, factor[0], factor[1]);
    sm90::pin(o);
    sm90::wgmma_fence();
    add_own_values(o, probabilities, v_tile + OWN * HALF_STEP);
    sm90::wgmma_commit();
    sm90::wgmma_wait<0>();
    sm90::pin(o);
    if (leader) sm90::mbarrier_arrive(kv_free + 8 * OWN);
    parity_own ^= 1;
  };
  const auto begin = [&] {
    row = Row{{-INFINITY, -INFINITY}, {0.0f, 0.0f}, {-INFINITY, -INFINITY}};
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
  };
  const auto wait_q = [&] {
    sm90::mbarrier_wait(q_ready, parity_q);
    parity_q ^= 1;
  };

  if (SIDE == 0) {
    keys = load_keys(work.indices, 0, work.count);
    wait_q();
    start_score(false);
    end_score();
    for (int number = blockIdx.x;;) {
      begin();
      for (int block = 0;; block += 2) {
        look_at_scores(block);
        softmax(s, top, probabilities, row, scale_log2, factor);
        give();
        add_own();
        turn ^= 1;
        if (block + 1 >= work.blocks) break;
        start_other();
        if (block + 2 >= work.blocks) {
          end_other();
          break;
        }
        start_score(true);  // the products with the other's block run under it
        end_score();
      }
      number += gridDim.x;
      const Work done = work;
      const uint32_t stage = own_p + turn * TILE_BYTES;
      if (number >= p.num_works) {
        finish<SIDE>(p, shared, o, row, done, stage, buffer);
        break;
      }
      work = describe(p, number);
      keys = load_keys(work.indices, 0, work.count);
      wait_q();
      start_score(false);  // runs while the finished output is written
      finish<SIDE>(p, shared, o, row, done, stage, buffer);
      end_score();
      buffer ^= 1;
    }
  } else {
    for (int number = blockIdx.x;;) {
      keys = load_keys(work.indices, KEYS, work.count);
      begin();
      wait_q();
      if (work.blocks == 1 && leader) sm90::mbarrier_arrive(q_free);
      for (int block = 1; block < work.blocks; block += 2) {
        start_score(false);
        end_score();
        look_at_scores(block);
        start_other();
        softmax(s, top, probabilities, row, scale_log2, factor);  // the products run under it
        give();
        end_other();
        add_own();
        turn ^= 1;
      }
      if (work.blocks % 2 == 1) {  // the last block has no partner here
        start_other();
        end_other();
        turn ^= 1;
      }
      finish<SIDE>(p, shared, o, row, work, own_p + 2 * TILE_BYTES, buffer);
      buffer ^= 1;
      number += gridDim.x;
      if (number >= p.num_works) break;
      work = describe(p, number);
    }
  }
}

}  // namespace prefill
