#pragma once
// Steps that no gradient reaches, neither carried nor direct: their gate gradients are zeros, with
// no walk. A gradient that enters at the last step alone has faded to zero after some hundred
// steps.
//
// So a walk is cut into slabs. Before each its block looks whether anything is carried, and where
// nothing is, at the slab's direct gradients: these do not wait for each other, as steps do. Slabs
// are long, since each walk waits for memory once.
//
// Blocks of a cluster would have to agree. They walk on.

#include "shape.cuh"
#include "views.cuh"

namespace bppsa::cuda {

template <class Shape>
constexpr int64_t kSlabSteps = Shape::kBlocks == 1 ? 512 : INT64_MAX;

/// Calls use(place) for steps first … last-1 and this thread's units, whose lanes take turns; unit
/// 0 of step 0 lies at `data`.
template <class Shape, typename Real, class Use>
BPPSA_DEVICE void for_steps_of_units(Real* data, int64_t step, int H, int64_t last, int64_t first,
                                     const Use& use) {
  constexpr int kSplit = Shape::kSplit, kAtOnce = ceil_div(16, kSplit);
#pragma unroll 1
  for (int p = 0; p < Shape::kPasses && unit_of<Shape>(p) < H; ++p) {
    const int64_t i = last - 1 - threadIdx.x % kSplit;
    Real* place = data + i * step + unit_of<Shape>(p);
#pragma unroll kAtOnce
    for (int n = static_cast<int>(i - first); n >= 0; n -= kSplit) {
      use(*place);
      place -= kSplit * step;
    }
  }
}

/// Whether no gradient reaches steps last-1 … first of sample b from g, that of this thread's
/// units; a NaN does. The same answer in all threads of the block.
template <class Shape, typename Real, int kStates>
BPPSA_DEVICE bool unreached(const BackwardView<Real>& view, int64_t b, int64_t last, int64_t first,
                            const Real (&g)[Shape::kPasses][kStates]) {
  if (Shape::kBlocks > 1) return false;
  bool any = false;
#pragma unroll 1
  for (int p = 0; p < Shape::kPasses && unit_of<Shape>(p) < view.H; ++p) {
#pragma unroll
    for (int s = 0; s < kStates; ++s) any = any || g[p][s] != 0;
  }
  if (__syncthreads_or(any)) return false;
  if (view.grad_output) {  // what enters before step i; before step 0 nothing does
    for_steps_of_units<Shape>(
        view.grad_output + view.time(0) * view.grad_step + b * view.grad_sample,
        view.reverse ? -view.grad_step : view.grad_step, view.H, last - 1,
        first > 0 ? first - 1 : 0, [&](Real u) { any |= u != 0; });
  }
  return !__syncthreads_or(any);
}

/// The gate gradients of such steps.
template <class Cell, class Shape, typename Real = typename Cell::scalar_t>
BPPSA_DEVICE void write_zeros(const BackwardView<Real>& view, int64_t b, int64_t last,
                              int64_t first) {
  for_steps_of_units<Shape>(view.rows + view.row(0, b) * Cell::kRows, view.row_step() * Cell::kRows,
                            view.H, last, first, [&](Real& row) {
#pragma unroll
                              for (int k = 0; k < Cell::kRows; ++k) (&row)[k * view.H] = 0;
                            });
}

}  // namespace bppsa::cuda
