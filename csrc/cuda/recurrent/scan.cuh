#pragma once
// The scans of a recurrent chain: linear, which is the replay of one chunk; chunked, a tree of one
// level; Blelloch, as a dense chain (written.cuh).

#include "../../requests/plan.h"
#include "carry.cuh"
#include "written.cuh"

namespace bppsa::cuda {

// The verbs of a tree over segments (scan/tree.h), each a launch. The tree ends before the chain's
// last chunk: its carry is known, and that of the tree's last node is composed from it.
template <class Cell>
class RecurrentTree {
 public:
  using Real = typename Cell::scalar_t;

  RecurrentTree(const BackwardView<Real>& view, int64_t chunk, Launcher& launch)
      : view_(view),
        tree_(Tree::before_last(view.T, chunk)),
        N_(Cell::kStates * view.H),
        launch_(launch) {
    const int64_t size = int64_t{N_} * (N_ + 2);
    parts_ = whole_trees(tree_, view.B, size * sizeof(Real), launch);
    scratch_ = launch.template allocate<Real>(tree_.roots() * parts_.samples * size);
  }

  void scan() { scan_tree(tree_, parts_, view_.B, *this); }

  void compose(const TreePart& part) {
    part_ = view_.template from_sample<Cell::kRows>(part.b);
    samples_ = part.n;
    compose_recurrent<Cell>(part_, span(), chunks(), products(), carries(), launch_);
  }
  void carry_roots(const TreePart&) {
    if (tree_.roots() == 1) return;
    carry_recurrent<Cell>(part_, span(), chunks(), products(), carries(), launch_);
  }
  void replay(const TreePart&) {
    replay_recurrent<Cell>(part_, span(), chunks(), carries(), launch_);
  }
  // There is one level.
  void merge(const TreePart&, int64_t) {}
  void carry(const TreePart&, int64_t) {}

 private:
  int64_t span() const { return tree_.segments.span; }
  int64_t chunks() const { return tree_.roots() + 1; }
  Products<Real> products() const { return {scratch_, tree_.roots(), samples_, N_}; }
  Carries<Real> carries() const {
    return {scratch_ + tree_.roots() * samples_ * products().size(), samples_, N_};
  }

  const BackwardView<Real>& view_;
  const Tree tree_;
  const int N_;  // numbers of a state
  Launcher& launch_;
  TreeParts parts_;
  Real* scratch_;
  BackwardView<Real> part_;  // the samples that are worked on,
  int64_t samples_;          // and their number
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
    return RecurrentTree<Cell>(view, plan.chunk, launch).scan();
  }
  const Carries<Real> none{nullptr, view.B, Cell::kStates * view.H};
  replay_recurrent<Cell>(view, view.T, 1, none, launch);
}

}  // namespace bppsa::cuda
