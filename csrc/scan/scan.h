// The scan of a chain by the algorithm of a plan.
#pragma once

#include "chain_tree.h"

namespace bppsa::BPPSA_ISA {

// Plain back-propagation, T matrix-vector steps, groups of samples in parallel.
template <class Chain>
void linear_scan(const Chain& chain, const Parallel& parallel) {
  const SampleGroups groups(chain.batch(), parallel.threads);
  for_each_index(parallel, groups.count, [&](int64_t i) {
    const int64_t b = groups.begin(i), n = groups.size(i);
    Walker<Chain> walker(chain, n);
    chain.last(b, n, walker.g);
    walker.template walk<true>(chain, chain.steps(), 0, b, n);
    chain.first(b, n, walker.g);
  });
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
void chunked_scan(const Chain& chain, int64_t chunk, const Parallel& parallel) {
  const int64_t steps = chain.steps();
  if (chunk >= steps) return linear_scan(chain, parallel);
  const Tree tree = Tree::before_last(steps, chunk);
  const TreeParts parts =
      TreeParts::of_batch(tree, chain.batch(), nodes_within_budget(chain, parallel));
  ChainTree<Chain> verbs(chain, parallel, tree, parts, true);
  scan_tree(tree, parts, chain.batch(), verbs);
}

template <class Chain>
void blelloch_scan(const Chain& chain, int64_t levels, const Parallel& parallel) {
  if (levels == 0 || chain.steps() == 0) return linear_scan(chain, parallel);
  const Tree tree = Tree::of(chain.steps(), 2, levels);
  const TreeParts parts =
      TreeParts::by_samples(tree, chain.batch(), nodes_within_budget(chain, parallel));
  ChainTree<Chain> verbs(chain, parallel, tree, parts, false);
  scan_tree(tree, parts, chain.batch(), verbs);
}

template <class Chain>
void scan(const Chain& chain, const Plan& plan, const Parallel& parallel) {
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(chain, parallel);
    case Algorithm::chunked:
      return chunked_scan(chain, plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(chain, plan.levels, parallel);
  }
}

}  // namespace bppsa::BPPSA_ISA
