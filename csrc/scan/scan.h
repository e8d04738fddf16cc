// The scan of a chain by the algorithm of a plan.
#pragma once

#include "chain_tree.h"

namespace bppsa::BPPSA_ISA {

// Plain back-propagation, T matrix-vector steps, groups of samples in parallel.
template <class Chain>
void linear_scan(const Chain& chain, const Parallel& parallel) {
  const SampleGroups groups(chain.batch(), parallel.threads);
  for_each_index(parallel, groups.count,
                 [&](int64_t i) { walk_samples(chain, groups.begin(i), groups.size(i)); });
}

// Nodes whose maps and carries a scan holds at a time, of one sample: what stays in the caches, but
// two for every thread.
template <class Chain>
int64_t nodes_within_budget(const Chain& chain, const Parallel& parallel) {
  constexpr int64_t kBudget = int64_t(4) << 20;
  const int64_t S = chain.state_width();
  const int64_t bytes = (S * S + 2 * S) * int64_t(sizeof(typename Chain::T));
  return max(kBudget / bytes, int64_t(2) * parallel.threads);
}

template <class Chain>
void scan(const Chain& chain, const Plan& plan, const Parallel& parallel) {
  const int64_t steps = chain.steps();
  const bool chunked = plan.algorithm == Algorithm::chunked;
  if (plan.algorithm == Algorithm::linear || steps == 0 ||
      (chunked ? plan.chunk >= steps : plan.levels == 0))
    return linear_scan(chain, parallel);
  const Tree tree =
      chunked ? Tree::before_last(steps, plan.chunk) : Tree::of(steps, 2, plan.levels);
  const int64_t nodes = nodes_within_budget(chain, parallel);
  const TreeParts parts = chunked ? TreeParts::of_batch(tree, chain.batch(), nodes)
                                  : TreeParts::by_samples(tree, chain.batch(), nodes);
  ChainTree<Chain> verbs(chain, parallel, tree, parts, chunked);
  scan_tree(tree, parts, chain.batch(), verbs);
}

}  // namespace bppsa::BPPSA_ISA
