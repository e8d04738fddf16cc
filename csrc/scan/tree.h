// The one driver of all parallel scans: a tree over segments of a chain (arXiv:1907.10134, section
// 3.3). A chunked scan is a tree of one level over segments of `chunk` steps, a Blelloch scan one
// of `levels` levels over segments of two; the linear scan is the replay of a single segment.
//
//   compose       the map of each segment
//   merge(l)      the up-sweep: node i of level l is segments [i 2^l, (i + 1) 2^l), its map that of
//                 its two children, or of a lone one
//   carry_roots   from root to root, last to first: the gradient that enters each
//   carry(l)      the down-sweep: the right child takes its parent's carry, the left child that
//                 carry across the right one; products of a matrix and a vector only
//   replay        each segment from its carry, writing the true gradients
//
// The roots are taken in parts, last to first, and the batch in parts where a part of one root is
// still too large, so that scratch stays within a budget: whatever lies before a part's first root
// needs of it one carry a sample.
//
// Host code of every device: no vectors, no torch.
#pragma once

#include "segments.h"

namespace bppsa {

struct Tree {
  Segments segments;
  int64_t levels;  // at least 1

  // Of as many levels, up to `most`, as it has use for.
  BPPSA_EVERYWHERE static Tree of(int64_t steps, int64_t span, int64_t most) {
    Tree tree{{steps, span}, 1};
    while (tree.levels < most && tree.roots() > 1) ++tree.levels;
    return tree;
  }
  // Of one level, without the chain's last segment: its carry is known, it needs no map.
  BPPSA_EVERYWHERE static Tree before_last(int64_t steps, int64_t span) {
    return {{(steps - 1) / span * span, span}, 1};
  }

  BPPSA_EVERYWHERE int64_t top() const { return levels - 1; }
  BPPSA_EVERYWHERE int64_t nodes(int64_t level) const {
    return ((segments.count() - 1) >> level) + 1;
  }
  BPPSA_EVERYWHERE int64_t roots() const { return nodes(top()); }
  BPPSA_EVERYWHERE int64_t lo(int64_t level, int64_t i) const { return segments.lo(i << level); }
  BPPSA_EVERYWHERE int64_t hi(int64_t level, int64_t i) const {
    const int64_t end = (i + 1) << level, count = segments.count();
    return segments.hi((end < count ? end : count) - 1);
  }

  // Nodes of all levels below one.
  BPPSA_EVERYWHERE int64_t nodes_before(int64_t level) const {
    int64_t total = 0;
    for (int64_t l = 0; l < level; ++l) total += nodes(l);
    return total;
  }
  // Nodes of all levels below and with `roots` roots, at most.
  BPPSA_EVERYWHERE int64_t nodes_below(int64_t roots) const {
    int64_t total = 0;
    for (int64_t l = 0; l <= top(); ++l) {
      const int64_t most = nodes(l), under = roots << (top() - l);
      total += under < most ? under : most;
    }
    return total;
  }
};

// Roots [first, end) of samples [b, b + n).
struct TreePart {
  int64_t first, end;
  int64_t b, n;
};

// How much of a tree is worked on at a time: `nodes` is what the budget holds, of one sample.
struct TreeParts {
  int64_t roots, samples;

  // Whole trees of as many samples as there is room for, or parts of a tree of one.
  BPPSA_EVERYWHERE static TreeParts by_samples(const Tree& tree, int64_t batch, int64_t nodes) {
    const int64_t samples = at_least_1(nodes / tree.nodes_below(tree.roots()));
    return {roots_within(tree, nodes), samples < batch ? samples : batch};
  }
  // All samples.
  BPPSA_EVERYWHERE static TreeParts of_batch(const Tree& tree, int64_t batch, int64_t nodes) {
    return {roots_within(tree, nodes / at_least_1(batch)), batch};
  }

 private:
  BPPSA_EVERYWHERE static int64_t at_least_1(int64_t n) { return n < 1 ? 1 : n; }
  BPPSA_EVERYWHERE static int64_t roots_within(const Tree& tree, int64_t nodes) {
    const int64_t roots = at_least_1(nodes / tree.nodes_below(1));
    return roots < tree.roots() ? roots : tree.roots();
  }
};

template <class Verbs>
BPPSA_ON_HOST void scan_tree(const Tree& tree, const TreeParts& parts, int64_t batch,
                             Verbs& verbs) {
  for (int64_t b = 0; b < batch; b += parts.samples)
    for (int64_t end = tree.roots(); end > 0; end -= parts.roots) {
      const TreePart part{end < parts.roots ? 0 : end - parts.roots, end, b,
                          batch - b < parts.samples ? batch - b : parts.samples};
      verbs.compose(part);
      for (int64_t l = 1; l <= tree.top(); ++l) verbs.merge(part, l);
      verbs.carry_roots(part);
      for (int64_t l = tree.top() - 1; l >= 0; --l) verbs.carry(part, l);
      verbs.replay(part);
    }
}

}  // namespace bppsa
