#pragma once
// The scans of diagonal chains: linear; or trees over segments, chunked and Blelloch.

#include <algorithm>

#include "../../requests/scans.h"
#include "kernels.cuh"

namespace bppsa::cuda {

// The phases of a tree (segments.cuh); a sample is an element.
template <class Chain>
struct ElementPhases {
  using Real = typename Chain::acc_t;
  using Map = double;

  Chain chain;  // the elements that are worked on
  Launcher& launch;

  int64_t map_size() const { return ElementMaps::size(1, 1); }
  int carry_size() const { return 1; }
  ElementMaps maps(double* data, int64_t nodes, int64_t elements) const {
    return {data, nodes, elements};
  }
  void work_on(int64_t first, int64_t count) { chain.first = first, chain.count = count; }
  void compose(int64_t span, const ElementMaps& maps, const Carries<Real>&) {
    launch_threads(launch, "compose elements", compose_elements_kernel<Chain>,
                   (maps.nodes - 1) * maps.count, chain, span, maps);
  }
  void merge(const ElementMaps& children, const ElementMaps& parents) {
    launch_threads(launch, "merge elements", merge_elements_kernel,
                   (parents.nodes - 1) * parents.count, children, parents);
  }
  void carry(int64_t span, const ElementMaps& maps, int64_t group, const Carries<Real>& incoming,
             const Carries<Real>& carries) {
    launch_threads(launch, "carry elements", carry_elements_kernel<Chain>,
                   ceil_div(maps.nodes, group) * maps.count, chain, span, maps, group,
                   incoming.data, carries.data);
  }
  void replay(int64_t span, int64_t nodes, const Carries<Real>& carries) {
    replay_elements(chain, span, nodes, carries.data, launch);
  }
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
  const auto tree = [&](int64_t span, int64_t levels) {
    SegmentTree(ElementPhases<DiagonalChain<scalar_t>>{chain, launch}, Tree::of(T, span, levels),
                false, count, launch)
        .scan();
  };
  if (plan.algorithm == Algorithm::chunked && plan.chunk < T) return tree(plan.chunk, 1);
  if (plan.algorithm == Algorithm::blelloch && plan.levels > 0 && T > 2) {
    return tree(2, plan.levels);
  }
  replay_elements(chain, std::max<int64_t>(T, 1), 1, static_cast<const Acc<scalar_t>*>(nullptr),
                  launch);
}

}  // namespace bppsa::cuda
