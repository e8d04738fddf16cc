#pragma once
// The Blelloch scan, in its hybrid form: up-sweep over `levels` levels, linear scan over the roots,
// down-sweep with matrix-vector products only.
//
// Node i of level l covers steps [i * 2^l, min((i + 1) * 2^l, T)). The products of a level are the
// steps of a dense chain, so a level composes the one below it in segments of two, a lone node
// passing up unchanged, and the carries of all nodes come down the same way: a right child has its
// parent's carry, a left child the carry through its right sibling. At the bottom the nodes of
// level 1 replay their two steps and write the result.

#include <vector>

#include "scan_chunked.cuh"

namespace bppsa::cuda {

template <class Cell>
void scan_blelloch(const Chain<Cell>& chain, const Vectors<typename Cell::scalar_t>& out,
                   int64_t levels, Launcher& launch) {
  using acc_t = typename Cell::acc_t;
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
  const int64_t product = all_nodes * H * (H + 1), carry = nodes[1] * H;
  const int64_t most = samples_per_group((product + 2 * carry) * sizeof(acc_t), chain.B, launch);
  acc_t* const scratch = launch.template allocate<acc_t>((product + 2 * carry) * most);

  for_sample_groups(chain, out, most, [&](const Chain<Cell>& part, const auto& part_out) {
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
        compose(products[level - 1].chain(), 2, products[level], plan, no_out, none, launch);
      }
    }
    acc_t* const carry_place[2] = {scratch + product * most, scratch + (product + carry) * most};
    Carries<acc_t> carries = none;
    for (int64_t level = levels; level >= 1; --level) {
      const Carries<acc_t> children{carry_place[level % 2], part.B, H};
      const int64_t group = level == levels ? nodes[level] : 2;
      pull(part, int64_t{1} << level, products[level], group, carries, children, launch);
      carries = children;
    }
    replay(part, part_out, 2, nodes[1], carries, launch);
  });
}

}  // namespace bppsa::cuda
