#pragma once
// The scans of a dense chain: linear, chunked, Blelloch.

#include "../../requests/scans.h"
#include "compose.cuh"
#include "instances.cuh"
#include "wide_step.cuh"

namespace bppsa::cuda {

// About what one multiprocessor reads in the time of four launches.
constexpr int64_t kWideBytes = int64_t{1} << 20;

inline bool walk_fits(int H, size_t acc_size, const Launcher& launch) {
  return walk_shared(H, acc_size) <= launch.shared_limit;
}

// The linear scan, in one of two mappings: one block per sample walks the whole chain in one launch
// (replay.cuh), where a step costs about a barrier, and the block's multiprocessor alone must read
// the matrix; or one launch per step (wide_step.cuh).
template <typename scalar_t>
void scan_linear(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out,
                 Launcher& launch) {
  using acc_t = Acc<scalar_t>;
  const int64_t matrix = int64_t{chain.H} * chain.H * sizeof(scalar_t);
  const bool few = 4 * chain.B <= launch.processors;
  if (!walk_fits(chain.H, sizeof(acc_t), launch) || (few && matrix >= kWideBytes)) {
    return scan_wide(chain, out, launch);
  }
  replay(chain, out, chain.T, 1, Carries<acc_t>{nullptr, chain.B, chain.H}, launch);
}

// The verbs of a tree over segments (scan/tree.h), each a launch. The products of a level are the
// steps of a dense chain: the level above composes them in segments of two. Node 0 of a level
// passes its carry to nobody and needs no product.
template <typename scalar_t>
class DenseTree {
 public:
  using acc_t = Acc<scalar_t>;

  /// replays_last: the tree ends before the chain's last segment, which is replayed beside the
  /// products: its carry is u[T], and it hands on that of the tree's last node.
  DenseTree(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, const Tree& tree,
            const ComposePlan& plan, bool replays_last, Launcher& launch)
      : chain_(chain),
        out_(out),
        tree_(tree),
        plan_(plan),
        replays_last_(replays_last),
        launch_(launch) {
    const int64_t size = (int64_t{chain.H} + 2) * chain.H, nodes = tree.nodes_before(tree.levels);
    parts_ = whole_trees(tree, chain.B, size * sizeof(acc_t), launch);
    scratch_ = launch.template allocate<acc_t>(size * nodes * parts_.samples);
  }

  void scan() { scan_tree(tree_, parts_, chain_.B, *this); }

  void compose(const TreePart& part) {
    part_ = chain_.from_sample(part.b);
    part_.B = part.n;
    cuda::compose(part_, tree_.segments.span, products(0), plan_, out_.from_sample(part.b),
                  replays_last_ ? carries(0) : none(), launch_);
  }

  void merge(const TreePart&, int64_t level) {
    const Vectors<acc_t> no_out{nullptr, 0, 0, 0};
    cuda::compose(chain_of(products(level - 1)), 2, products(level), plan_, no_out, none(),
                  launch_);
  }

  void carry_roots(const TreePart&) {
    const int64_t roots = tree_.roots();
    if (!replays_last_) return pull(tree_.top(), roots, none());
    if (roots > 1) pull(0, roots, {carries(0)(roots - 1, 0), part_.B, chain_.H});
  }

  void carry(const TreePart&, int64_t level) { pull(level, 2, carries(level + 1)); }

  void replay(const TreePart& part) {
    cuda::replay(part_, out_.from_sample(part.b), tree_.segments.span, tree_.nodes(0), carries(0),
                 launch_);
  }

 private:
  Products<acc_t> products(int64_t level) const {
    const int64_t size = (int64_t{chain_.H} + 1) * chain_.H;
    return {scratch_ + tree_.nodes_before(level) * part_.B * size, tree_.nodes(level), part_.B,
            chain_.H};
  }
  Carries<acc_t> carries(int64_t level) const {
    acc_t* const behind_products = products(tree_.levels).data;
    return {behind_products + tree_.nodes_before(level) * part_.B * chain_.H, part_.B, chain_.H};
  }
  Carries<acc_t> none() const { return {nullptr, part_.B, chain_.H}; }

  /// The carries of a level's nodes, in groups.
  void pull(int64_t level, int64_t group, const Carries<acc_t>& incoming) {
    cuda::carry(part_, tree_.segments.span << level, products(level), group, incoming,
                carries(level), launch_);
  }

  const DenseChain<scalar_t>& chain_;
  const Vectors<scalar_t>& out_;
  const Tree tree_;
  const ComposePlan plan_;
  const bool replays_last_;
  Launcher& launch_;
  TreeParts parts_;
  acc_t* scratch_;
  DenseChain<scalar_t> part_;  // the samples that are worked on
};

template <typename scalar_t>
void scan_chunked(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t chunk,
                  Launcher& launch) {
  const ComposePlan plan = plan_compose<Acc<scalar_t>>(chain.H, launch.shared_limit);
  // A chunk of one step has nothing to compose; a panel that does not fit belongs to matrices so
  // large that their products cannot pay.
  if (chunk < 2 || chunk >= chain.T || plan.shared == 0) return scan_linear(chain, out, launch);
  const Tree tree = Tree::before_last(chain.T, chunk);
  DenseTree<scalar_t>(chain, out, tree, plan, true, launch).scan();
}

template <typename scalar_t>
void scan_blelloch(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t levels,
                   Launcher& launch) {
  const ComposePlan plan = plan_compose<Acc<scalar_t>>(chain.H, launch.shared_limit);
  if (levels == 0 || chain.T < 2 || plan.shared == 0) return scan_linear(chain, out, launch);
  DenseTree<scalar_t>(chain, out, Tree::of(chain.T, 2, levels), plan, false, launch).scan();
}

/// The scan that a request asks for, by a plan.
template <typename scalar_t>
void scan_dense(const DenseScanRequest& request, const Plan& plan, Launcher& launch) {
  if (request.B == 0) return;
  const int64_t *const js = request.jac_stride, *const gs = request.grad_stride;
  const DenseChain<scalar_t> chain{
      {static_cast<const scalar_t*>(request.jac_t), js[0], js[1], static_cast<int>(js[2]),
       static_cast<int>(js[3])},
      {static_cast<const scalar_t*>(request.grad), gs[0], gs[1], static_cast<int>(gs[2])},
      request.T,
      request.B,
      static_cast<int>(request.H)};
  const Vectors<scalar_t> out{static_cast<scalar_t*>(request.out), request.out_step, request.H, 1};
  switch (plan.algorithm) {
    case Algorithm::linear:
      return scan_linear(chain, out, launch);
    case Algorithm::chunked:
      return scan_chunked(chain, out, plan.chunk, launch);
    case Algorithm::blelloch:
      return scan_blelloch(chain, out, plan.levels, launch);
  }
}

}  // namespace bppsa::cuda
