#pragma once
// The scans of a recurrent chain: linear, which is the replay of one chunk, or of windows; chunked,
// a tree of one level; Blelloch, as a dense chain (written.cuh).

#include "../../requests/plan.h"
#include "carry.cuh"
#include "written.cuh"

namespace bppsa::cuda {

// The phases of a tree (segments.cuh) of one level, which ends before the chain's last chunk.
template <class Cell>
struct RecurrentPhases {
  using Real = typename Cell::scalar_t;
  using Map = Real;

  const BackwardView<Real> view;
  Launcher& launch;
  BackwardView<Real> part = view;  // the samples that are worked on

  int carry_size() const { return Cell::kStates * view.H; }
  int64_t map_size() const { return int64_t{carry_size()} * (carry_size() + 1); }
  Products<Real> maps(Real* data, int64_t nodes, int64_t samples) const {
    return {data, nodes, samples, carry_size()};
  }
  void work_on(int64_t b, int64_t n) { part = view.template of_samples<Cell::kRows>(b, n); }
  void compose(int64_t span, const Products<Real>& products, const Carries<Real>& handoff) {
    compose_recurrent<Cell>(part, span, products.nodes + 1, products, handoff, launch);
  }
  void merge(const Products<Real>&, const Products<Real>&) {}
  void carry(int64_t span, const Products<Real>& products, int64_t, const Carries<Real>&,
             const Carries<Real>& carries) {
    carry_recurrent<Cell>(part, span, products.nodes + 1, products, carries, launch);
  }
  void replay(int64_t span, int64_t nodes, const Carries<Real>& carries) {
    replay_recurrent<Cell>(part, Windows{nodes + 1, 0, span, 0}, carries, launch);
  }
};

/// Gate gradients and gradients of the initial state.
template <class Cell, typename Real = typename Cell::scalar_t>
void scan_recurrent(const BackwardView<Real>& view, const Plan& plan, Launcher& launch) {
  if (plan.algorithm == Algorithm::blelloch && plan.levels > 0 && view.T > 1) {
    return scan_written<Cell>(view, plan.levels, launch);
  }
  // Of larger states the products never pay: such a chunked scan is a linear one.
  if (plan.algorithm == Algorithm::chunked && plan.chunk >= 2 && plan.chunk < view.T &&
      view.H <= kMostComposedH) {
    const Tree tree = Tree::before_last(view.T, plan.chunk);
    return SegmentTree(RecurrentPhases<Cell>{view, launch}, tree, true, view.B, launch).scan();
  }
  const Carries<Real> none{nullptr, view.B, Cell::kStates * view.H};
  replay_recurrent<Cell>(view, view.windows, none, launch);
}

}  // namespace bppsa::cuda
