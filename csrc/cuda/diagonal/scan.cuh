#pragma once
// The scans of diagonal chains: linear; or trees over segments, chunked and Blelloch.

#include <algorithm>
#include <vector>

#include "../../requests/scans.h"
#include "kernels.cuh"

namespace bppsa::cuda {

// The levels of a tree over segments of `span` steps, each half as many nodes as the one below;
// the chunked scan is a tree of one level. The top level is scanned in sequence.
template <class Chain>
void scan_segments(const Chain& chain, int64_t span, int64_t levels, Launcher& launch) {
  using acc_t = typename Chain::acc_t;
  std::vector<int64_t> nodes{ceil_div(chain.T, span)};
  while (static_cast<int64_t>(nodes.size()) < levels && nodes.back() > 1) {
    nodes.push_back(ceil_div<int64_t>(nodes.back(), 2));
  }
  int64_t total = 0;
  for (int64_t n : nodes) total += n;
  const int64_t bytes = total * (3 * sizeof(double) + sizeof(acc_t));
  const int64_t limit = static_cast<int64_t>(launch.scratch_limit);
  const int64_t most = std::clamp<int64_t>(limit / bytes, 1, chain.count);
  double* const map_memory = launch.template allocate<double>(ElementMaps::size(total, most));
  acc_t* const carry_memory = launch.template allocate<acc_t>(total * most);

  // Groups of elements follow each other in the stream and share the scratch.
  for (int64_t e = 0; e < chain.count; e += most) {
    Chain part = chain;
    part.first = chain.first + e;
    part.count = std::min(most, chain.count - e);
    std::vector<ElementMaps> maps;
    std::vector<acc_t*> carries;
    int64_t before = 0;
    for (int64_t n : nodes) {
      maps.push_back({map_memory + ElementMaps::size(before, most), n, part.count});
      carries.push_back(carry_memory + before * most);
      before += n;
    }
    const int top = static_cast<int>(nodes.size()) - 1;
    launch_threads(launch, "compose elements", compose_elements_kernel<Chain>,
                   (nodes[0] - 1) * part.count, part, span, maps[0]);
    for (int l = 1; l <= top; ++l) {
      launch_threads(launch, "merge elements", merge_elements_kernel, (nodes[l] - 1) * part.count,
                     maps[l - 1], maps[l]);
    }
    const acc_t* incoming = nullptr;
    for (int l = top; l >= 0; --l) {
      const int64_t group = l == top ? nodes[l] : 2;
      launch_threads(launch, "carry elements", carry_elements_kernel<Chain>,
                     ceil_div(nodes[l], group) * part.count, part, span << l, maps[l], group,
                     incoming, carries[l]);
      incoming = carries[l];
    }
    replay_elements(part, span, nodes[0], incoming, launch);
  }
}

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
    return scan_segments(chain, plan.chunk, 1, launch);
  }
  if (plan.algorithm == Algorithm::blelloch && plan.levels > 0 && T > 2) {
    return scan_segments(chain, 2, plan.levels, launch);
  }
  replay_elements(chain, std::max<int64_t>(T, 1), 1, static_cast<const Acc<scalar_t>*>(nullptr),
                  launch);
}

}  // namespace bppsa::cuda
