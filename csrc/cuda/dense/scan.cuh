#pragma once
// The scans of a dense chain: linear, chunked, Blelloch.

#include <algorithm>
#include <vector>

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

/// Calls run(chain, out) for groups of samples whose scratch, at `bytes` a sample, stays within the
/// launcher's limit. Groups follow each other in the stream and may share the scratch.
template <typename scalar_t, class Run>
void for_sample_groups(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out,
                       int64_t most, Run run) {
  for (int64_t b = 0; b < chain.B; b += most) {
    DenseChain<scalar_t> group = chain.from_sample(b);
    group.B = std::min(most, group.B);
    run(group, out.from_sample(b));
  }
}

inline int64_t samples_per_group(int64_t bytes, int64_t B, const Launcher& launch) {
  const int64_t limit = static_cast<int64_t>(launch.scratch_limit);
  return std::clamp<int64_t>(limit / std::max<int64_t>(bytes, 1), 1, B);
}

// The chunked scan, three launches for N chunks of `chunk` steps each:
//   1. chunks 1 … N-2 compose their products; beside them chunk N-1, with carry u[T], is replayed;
//   2. the carries of chunks N-3 … 0, matrix-vector only;
//   3. chunks 0 … N-2 are replayed.
// Chunk 0 passes its carry to nobody and needs no product either.
template <typename scalar_t>
void scan_chunked(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t chunk,
                  Launcher& launch) {
  using acc_t = Acc<scalar_t>;
  const int H = chain.H;
  const ComposePlan plan = plan_compose<acc_t>(H, launch.shared_limit);
  // A chunk of one step has nothing to compose; a panel that does not fit belongs to matrices so
  // large that their products cannot pay.
  if (chunk < 2 || chunk >= chain.T || plan.shared == 0) return scan_linear(chain, out, launch);

  const int64_t nodes = ceil_div(chain.T, chunk) - 1;
  const int64_t product = nodes * H * (H + 1), vectors = nodes * H;
  const int64_t most = samples_per_group((product + vectors) * sizeof(acc_t), chain.B, launch);
  acc_t* const scratch = launch.template allocate<acc_t>((product + vectors) * most);
  for_sample_groups(chain, out, most, [&](const DenseChain<scalar_t>& part, const auto& part_out) {
    const Products<acc_t> products{scratch, nodes, part.B, H};
    const Carries<acc_t> carries{scratch + product * most, part.B, H};
    const Carries<acc_t> incoming{carries(nodes - 1, 0), part.B, H};
    compose(part, chunk, products, plan, part_out, carries, launch);
    if (nodes > 1) carry(part, chunk, products, nodes, incoming, carries, launch);
    replay(part, part_out, chunk, nodes, carries, launch);
  });
}

// The Blelloch scan, in its hybrid form: up-sweep over `levels` levels, linear scan over the roots,
// down-sweep with matrix-vector products only.
//
// Node i of level l covers steps [i * 2^l, min((i + 1) * 2^l, T)). The products of a level are the
// steps of a dense chain, so a level composes the one below it in segments of two, a lone node
// passing up unchanged, and the carries of all nodes come down the same way: a right child has its
// parent's carry, a left child the carry through its right sibling. At the bottom the nodes of
// level 1 replay their two steps and write the result.
template <typename scalar_t>
void scan_blelloch(const DenseChain<scalar_t>& chain, const Vectors<scalar_t>& out, int64_t levels,
                   Launcher& launch) {
  using acc_t = Acc<scalar_t>;
  const int H = chain.H;
  const ComposePlan plan = plan_compose<acc_t>(H, launch.shared_limit);
  if (levels == 0 || chain.T < 2 || plan.shared == 0) return scan_linear(chain, out, launch);

  std::vector<int64_t> nodes{chain.T};
  int64_t all_nodes = 0;
  for (int64_t level = 1; level <= levels; ++level) {
    nodes.push_back(ceil_div<int64_t>(nodes.back(), 2));
    all_nodes += nodes.back();
  }
  // Products of every level; carries of two levels at a time, the parents' and the children's.
  const int64_t product = all_nodes * H * (H + 1), vectors = nodes[1] * H;
  const int64_t most = samples_per_group((product + 2 * vectors) * sizeof(acc_t), chain.B, launch);
  acc_t* const scratch = launch.template allocate<acc_t>((product + 2 * vectors) * most);

  for_sample_groups(chain, out, most, [&](const DenseChain<scalar_t>& part, const auto& part_out) {
    const Carries<acc_t> none{nullptr, part.B, H};
    const Vectors<acc_t> no_out{nullptr, 0, 0, 0};
    std::vector<Products<acc_t>> products(1);  // level 0 is the chain itself
    acc_t* place = scratch;
    for (int64_t level = 1; level <= levels; ++level) {
      products.push_back({place, nodes[level], part.B, H});
      place += nodes[level] * part.B * products[level].size();
      if (level == 1) {
        compose(part, 2, products[1], plan, part_out, none, launch);
      } else {
        compose(chain_of(products[level - 1]), 2, products[level], plan, no_out, none, launch);
      }
    }
    acc_t* const carry_place[2] = {scratch + product * most, scratch + (product + vectors) * most};
    Carries<acc_t> carries = none;
    for (int64_t level = levels; level >= 1; --level) {
      const Carries<acc_t> children{carry_place[level % 2], part.B, H};
      const int64_t group = level == levels ? nodes[level] : 2;
      carry(part, int64_t{1} << level, products[level], group, carries, children, launch);
      carries = children;
    }
    replay(part, part_out, 2, nodes[1], carries, launch);
  });
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
