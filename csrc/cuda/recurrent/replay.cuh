#pragma once
// Replay: with the carry of every chunk known, each chunk is walked on its own and writes its own
// gate gradients; chunk 0 also writes the gradients of the initial state. The linear scan is the
// replay of one chunk that is the whole chain.
//
// Chunk k covers steps [k * span, min((k + 1) * span, T)); its carry is g of its last step. A block
// works on one (chunk, sample).

#include "walk.cuh"

namespace bppsa::cuda {

// The carry of chunk k of sample b: H numbers for each state. The last chunk needs none: its carry
// is the gradient at the end of the chain.
template <typename T>
struct StateCarries {
  T* data;
  int64_t B;
  int size;  // states * H

  BPPSA_BOTH T* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * size; }
};

template <class Cell, class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    recurrent_replay_kernel(BackwardView<typename Cell::scalar_t> view, int64_t span,
                            int64_t chunks, StateCarries<typename Cell::scalar_t> carries,
                            int staged) {
  if constexpr (Shape::kBlocks > 1 && !kHasClusters) return;  // the launcher never comes here
  using T = typename Cell::scalar_t;
  constexpr int kPasses = Shape::kPasses;
  const int H = view.H, pitch = padded<T, Shape>(H);
  T* const panes = reinterpret_cast<T*>(shared_memory());
  const Weights<T, Cell::kGates, Shape> weights(
      view.w_hh, H, true, reinterpret_cast<Pack<T>*>(panes + 2 * Cell::kGates * pitch), staged);
  for (int k = threadIdx.x; k < 2 * Cell::kGates * pitch; k += blockDim.x) panes[k] = 0;
  sync_units<Shape>();
  for (int64_t task = blockIdx.x / Shape::kBlocks; task < chunks * view.B;
       task += gridDim.x / Shape::kBlocks) {
    const int64_t k = task / view.B, b = task % view.B;
    T g[kPasses][Cell::kStates];
#pragma unroll 1
    for (int p = 0; p < kPasses; ++p) {
      const int unit = smaller(unit_of<Shape>(p), H - 1);
#pragma unroll
      for (int s = 0; s < Cell::kStates; ++s) {
        g[p][s] = k == chunks - 1 ? view.last(s, b, unit) : carries(k, b)[s * H + unit];
      }
    }
    walk_back<Cell, Shape, true>(view, weights, b, smaller((k + 1) * span, view.T_), k * span, g,
                                 panes);
    if (k > 0 || !writes_unit<Shape>()) continue;
#pragma unroll 1
    for (int p = 0; p < kPasses; ++p) {
      const int unit = unit_of<Shape>(p);
      if (unit >= H) break;
      view.finish(b, unit, g[p]);
    }
  }
}

template <class Cell, class Shape>
void replay_in(const BackwardView<typename Cell::scalar_t>& view, int64_t span, int64_t chunks,
               const StateCarries<typename Cell::scalar_t>& carries, Launcher& launch) {
  using T = typename Cell::scalar_t;
  const size_t vectors = 2 * Cell::kGates * padded<T, Shape>(view.H) * sizeof(T);
  const int staged = staged_pieces<T, Cell::kGates, Shape>(view.H, vectors, launch.shared_limit);
  launch_units<Shape>(launch, "replay", recurrent_replay_kernel<Cell, Shape>, chunks * view.B,
                      unit_threads<Shape>(view.H),
                      vectors + staged_bytes<T, Cell::kGates, Shape>(view.H, staged), view, span,
                      chunks, carries, staged);
}

template <class Cell>
void replay_recurrent(const BackwardView<typename Cell::scalar_t>& view, int64_t span,
                      int64_t chunks, const StateCarries<typename Cell::scalar_t>& carries,
                      Launcher& launch) {
  with_unit_shape<typename Cell::scalar_t, Cell::kGates, true>(view.H, launch, [&](auto shape) {
    replay_in<Cell, decltype(shape)>(view, span, chunks, carries, launch);
  });
}

}  // namespace bppsa::cuda
