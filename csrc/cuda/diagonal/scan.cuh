#pragma once
// The scans of diagonal chains: linear; or trees over segments, chunked and Blelloch.

#include <algorithm>

#include "../../requests/scans.h"
#include "kernels.cuh"

namespace bppsa::cuda {

// The verbs of a tree over segments (scan/tree.h), each a launch; a sample is an element.
template <class Chain>
class ElementTree {
 public:
  using acc_t = typename Chain::acc_t;

  ElementTree(const Chain& chain, const Tree& tree, Launcher& launch)
      : chain_(chain), tree_(tree), part_(chain), launch_(launch) {
    const int64_t bytes = ElementMaps::size(1, 1) * sizeof(double) + sizeof(acc_t);
    parts_ = whole_trees(tree, chain.count, bytes, launch);
    const int64_t maps = tree.nodes_before(tree.levels) * parts_.samples;
    maps_ = launch.template allocate<double>(ElementMaps::size(maps, 1));
    carries_ = launch.template allocate<acc_t>(maps);
  }

  void scan() { scan_tree(tree_, parts_, chain_.count, *this); }

  void compose(const TreePart& part) {
    part_.first = chain_.first + part.b;
    part_.count = part.n;
    launch_threads(launch_, "compose elements", compose_elements_kernel<Chain>,
                   (tree_.nodes(0) - 1) * part.n, part_, tree_.segments.span, maps(0));
  }

  void merge(const TreePart& part, int64_t level) {
    launch_threads(launch_, "merge elements", merge_elements_kernel,
                   (tree_.nodes(level) - 1) * part.n, maps(level - 1), maps(level));
  }

  void carry_roots(const TreePart&) { pull(tree_.top(), tree_.roots(), nullptr); }

  void carry(const TreePart&, int64_t level) { pull(level, 2, carries(level + 1)); }

  void replay(const TreePart&) {
    replay_elements(part_, tree_.segments.span, tree_.nodes(0), carries(0), launch_);
  }

 private:
  ElementMaps maps(int64_t level) const {
    return {maps_ + ElementMaps::size(tree_.nodes_before(level), part_.count), tree_.nodes(level),
            part_.count};
  }
  acc_t* carries(int64_t level) const { return carries_ + tree_.nodes_before(level) * part_.count; }

  /// The carries of a level's nodes, in groups.
  void pull(int64_t level, int64_t group, const acc_t* incoming) {
    launch_threads(launch_, "carry elements", carry_elements_kernel<Chain>,
                   ceil_div(tree_.nodes(level), group) * part_.count, part_,
                   tree_.segments.span << level, maps(level), group, incoming, carries(level));
  }

  const Chain& chain_;
  const Tree tree_;
  Chain part_;  // the elements that are worked on
  Launcher& launch_;
  TreeParts parts_;
  double* maps_;
  acc_t* carries_;
};

/// The scan that a request asks for, by a plan.
template <typename scalar_t>
void scan_diagonal(const DiagonalScanRequest& request, const Plan& plan, Launcher& launch) {
  const int64_t T = request.T, H = request.H, count = request.B * H;
  if (count == 0) return;
  const auto elements = [](auto* data, const int64_t* stride) {
    return Elements<const scalar_t>{static_cast<const scalar_t*>(data), stride[0], stride[1],
                                    stride[2]};
  };
  const DiagonalChain<scalar_t> chain{elements(request.decay, request.decay_stride),
                                      elements(request.grad, request.grad_stride),
                                      {static_cast<scalar_t*>(request.out), request.out_step, H, 1},
                                      T,
                                      H,
                                      0,
                                      count};
  if (plan.algorithm == Algorithm::chunked && plan.chunk < T) {
    return ElementTree(chain, Tree::of(T, plan.chunk, 1), launch).scan();
  }
  if (plan.algorithm == Algorithm::blelloch && plan.levels > 0 && T > 2) {
    return ElementTree(chain, Tree::of(T, 2, plan.levels), launch).scan();
  }
  replay_elements(chain, std::max<int64_t>(T, 1), 1, static_cast<const Acc<scalar_t>*>(nullptr),
                  launch);
}

}  // namespace bppsa::cuda
