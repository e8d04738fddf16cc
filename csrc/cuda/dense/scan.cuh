#pragma once
// The scans of a dense chain: linear, chunked, Blelloch.

#include "../../requests/scans.h"
#include "compose.cuh"
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

// The phases of a tree (segments.cuh). The products of a level are the steps of a dense chain: the
// level above composes them in segments of two. The chain's last segment is replayed beside the
// products.
template <typename scalar_t>
struct DensePhases {
  using Real = Acc<scalar_t>;
  using Map = Real;

  const DenseChain<scalar_t> chain;
  const Vectors<scalar_t> out;
  const ComposePlan plan;
  Launcher& launch;
  DenseChain<scalar_t> part = chain;  // the samples that are worked on
  Vectors<scalar_t> part_out = out;

  int64_t map_size() const { return (int64_t{chain.H} + 1) * chain.H; }
  int carry_size() const { return chain.H; }
  Products<Real> maps(Real* data, int64_t nodes, int64_t samples) const {
    return {data, nodes, samples, chain.H};
  }
  void work_on(int64_t b, int64_t n) {
    part = chain.from_sample(b), part_out = out.from_sample(b);
    part.B = n;
  }
  void compose(int64_t span, const Products<Real>& products, const Carries<Real>& handoff) {
    cuda::compose(part, span, products, plan, part_out, handoff, launch);
  }
  void merge(const Products<Real>& children, const Products<Real>& parents) {
    cuda::compose(chain_of(children), 2, parents, plan, Vectors<Real>{}, Carries<Real>{}, launch);
  }
  void carry(int64_t span, const Products<Real>& products, int64_t group,
             const Carries<Real>& incoming, const Carries<Real>& carries) {
    cuda::carry(part, span, products, group, incoming, carries, launch);
  }
  void replay(int64_t span, int64_t nodes, const Carries<Real>& carries) {
    cuda::replay(part, part_out, span, nodes, carries, launch);
  }
};

template <typename scalar_t>
void scan_chunked(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t chunk,
                  Launcher& launch) {
  const ComposePlan plan = plan_compose<Acc<scalar_t>>(chain.H, launch.shared_limit);
  // A chunk of one step has nothing to compose; a panel that does not fit belongs to matrices so
  // large that their products cannot pay.
  if (chunk < 2 || chunk >= chain.T || plan.shared == 0) return scan_linear(chain, out, launch);
  const Tree tree = Tree::before_last(chain.T, chunk);
  SegmentTree(DensePhases<scalar_t>{chain, out, plan, launch}, tree, true, chain.B, launch).scan();
}

template <typename scalar_t>
void scan_blelloch(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t levels,
                   Launcher& launch) {
  const ComposePlan plan = plan_compose<Acc<scalar_t>>(chain.H, launch.shared_limit);
  if (levels == 0 || chain.T < 2 || plan.shared == 0) return scan_linear(chain, out, launch);
  const Tree tree = Tree::of(chain.T, 2, levels);
  SegmentTree(DensePhases<scalar_t>{chain, out, plan, launch}, tree, false, chain.B, launch).scan();
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
