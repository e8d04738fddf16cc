#pragma once
// Replay: with the carry of every chunk known, each chunk is walked on its own and writes its own
// gate gradients; chunk 0 also writes the gradients of the initial state. The linear scan is the
// replay of one chunk that is the whole chain.
//
// A block works on one (chunk, sample). The last chunk needs no carry: its own is the gradient at
// the end of the chain. Windows are chunks whose carries nobody computed: each is guessed by a walk
// of the steps behind the window, which writes no gate gradients, and what arrives at a window's
// beginning is written too, for whoever compares.

#include "../device/segments.cuh"
#include "unreached.cuh"
#include "walk.cuh"

namespace bppsa::cuda {

template <class Cell, class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    recurrent_replay_kernel(BackwardView<typename Cell::scalar_t> view, Windows chunks,
                            Carries<typename Cell::scalar_t> carries, int staged) {
  if constexpr (Shape::kBlocks > 1 && !kHasClusters) return;  // the launcher never comes here
  using Real = typename Cell::scalar_t;
  constexpr int kPasses = Shape::kPasses;
  const int H = view.H, pitch = padded<Real, Shape>(H);
  Real* const panes = reinterpret_cast<Real*>(shared_memory());
  const Weights<Real, Cell::kGates, Shape> weights(
      view.w_hh, H, true, reinterpret_cast<Pack<Real>*>(panes + 2 * Cell::kGates * pitch), staged);
  for (int k = threadIdx.x; k < 2 * Cell::kGates * pitch; k += blockDim.x) panes[k] = 0;
  sync_units<Shape>();
  for (int64_t task = blockIdx.x / Shape::kBlocks; task < chunks.n * view.B;
       task += gridDim.x / Shape::kBlocks) {
    const int64_t k = task / view.B, b = task % view.B;
    const int64_t hi = smaller(chunks.first(k + 1), view.T);
    const int64_t from = k < chunks.n - 1 ? smaller(hi + chunks.warm, view.T) : hi;
    Real g[kPasses][Cell::kStates];
#pragma unroll 1
    for (int p = 0; p < kPasses; ++p) {
      const int unit = smaller(unit_of<Shape>(p), H - 1);
#pragma unroll
      for (int s = 0; s < Cell::kStates; ++s) {
        if (from == view.T) {
          g[p][s] = view.last(s, b, unit);
        } else if (chunks.warm > 0) {
          g[p][s] = s == 0 ? view.direct(from - 1, b, unit) : Real(0);
        } else {
          g[p][s] = carries ? carries(k, b)[s * H + unit] : view.begun(s)[task * H + unit];
        }
      }
    }
    bool guesses = from > hi;
#pragma unroll 1
    for (int walks = guesses ? 2 : 1; walks > 0; --walks, guesses = false) {
      const int64_t begin = guesses ? hi : chunks.first(k);
      for (int64_t last = guesses ? from : hi, first; last > begin; last = first) {
        first = last - smaller(kSlabSteps<Shape>, last - begin);
        // Of a warp's answer nvcc knows that all threads have the same, of a block's it does not:
        // the walk would take up to 50 registers more.
        if (!__any_sync(0xffffffffu, unreached<Shape>(view, b, last, first, g)))
          walk_back<Cell, Shape>(view, weights, b, last, first, g, panes, !guesses);
        else if (!guesses)
          write_zeros<Cell, Shape>(view, b, last, first);
      }
      if ((k > 0 && carries) || !writes_unit<Shape>()) continue;
#pragma unroll 1
      for (int p = 0; p < kPasses; ++p) {
        const int unit = unit_of<Shape>(p);
        if (unit >= H) break;
        guesses ? view.begin(task, unit, g[p]) : view.finish(task, unit, g[p]);
      }
    }
  }
}

template <class Cell, class Shape>
void replay_in(const BackwardView<typename Cell::scalar_t>& view, const Windows& chunks,
               const Carries<typename Cell::scalar_t>& carries, Launcher& launch) {
  using Real = typename Cell::scalar_t;
  if constexpr (kUsed<Cell::kGates, Shape>) {
    launch_units<Real, Cell::kGates, Shape>(launch, "replay", recurrent_replay_kernel<Cell, Shape>,
                                            chunks.n * view.B, view.H, 2 * Cell::kGates, view,
                                            chunks, carries);
  }
}

/// carries: null where the chunks are the view's windows.
template <class Cell>
void replay_recurrent(const BackwardView<typename Cell::scalar_t>& view, const Windows& chunks,
                      const Carries<typename Cell::scalar_t>& carries, Launcher& launch) {
  with_unit_shape<typename Cell::scalar_t, Cell::kGates, true>(view.H, launch, [&](auto shape) {
    replay_in<Cell, decltype(shape)>(view, chunks, carries, launch);
  });
}

}  // namespace bppsa::cuda
