// The linear scan: plain back-propagation, T matrix-vector steps, groups of samples in parallel.
#pragma once

#include "walk.h"

namespace bppsa::BPPSA_ISA {

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

}  // namespace bppsa::BPPSA_ISA
