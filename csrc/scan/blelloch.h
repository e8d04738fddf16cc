// The Blelloch scan with L levels (the paper's hybrid, arXiv:1907.10134, section 3.3):
//
//   up-sweep     node i of level l is the map of steps (i 2^l, min((i + 1) 2^l, T)]; a node
//                is its children's composition, a lone child passes up unchanged
//   roots        linear scan over the nodes of level L
//   down-sweep   the right child takes its parent's carry, the left child that carry across
//                the right child; matrix-vector products only
//
// Level 0 are the chain's own steps and is never stored: level 1 composes pairs of steps, and
// the down-sweep ends by replaying those pairs. L = 0 is the linear scan. Samples go through
// in groups, so that scratch is at most max(kBudget, one sample's T H^2) numbers' worth.
#pragma once

#include "maps.h"

namespace bppsa::BPPSA_ISA {

template <class Chain>
struct BlellochGroup {
  using T = typename Chain::T;

  const Chain& chain;
  const Parallel& parallel;
  const int64_t levels, b0, n, H;
  int64_t nodes[kMaxLevels + 1];   // nodes a level, for one sample
  int64_t offset[kMaxLevels + 1];  // of a level's first node, for one sample
  int64_t total = 0;
  Buffer<T> maps;
  Buffer<T> carries;
  Buffer<Segment<T>> segments;

  static int64_t count_nodes(int64_t T_steps, int64_t levels) {
    int64_t total = 0;
    for (int64_t l = 1, m = T_steps; l <= levels; ++l) total += m = ceil_div(m, int64_t(2));
    return total;
  }

  BlellochGroup(const Chain& chain, const Parallel& parallel, int64_t levels, int64_t b0, int64_t n)
      : chain(chain),
        parallel(parallel),
        levels(levels),
        b0(b0),
        n(n),
        H(chain.state_width()),
        maps(n * count_nodes(chain.steps(), levels) * (H * H + H)),
        carries(n * count_nodes(chain.steps(), levels) * H),
        segments(n * count_nodes(chain.steps(), levels)) {
    for (int64_t l = 1, m = chain.steps(); l <= levels; ++l) {
      nodes[l] = m = ceil_div(m, int64_t(2));
      offset[l] = total;
      total += m;
    }
  }

  int64_t index(int64_t l, int64_t i, int64_t r) const { return r * total + offset[l] + i; }
  Segment<T>& segment(int64_t l, int64_t i, int64_t r) const {
    return segments.data[index(l, i, r)];
  }
  T* carry(int64_t l, int64_t i, int64_t r) const { return carries.data + index(l, i, r) * H; }
  int64_t lo(int64_t l, int64_t i) const { return i << l; }
  int64_t hi(int64_t l, int64_t i) const { return min((i + 1) << l, chain.steps()); }

  // Calls body(node, sample, composer) for each node of level l and sample of the group.
  template <class Body>
  void for_each_node(int64_t l, const Body& body) const {
    for_each_index(
        parallel, nodes[l] * n, [&] { return Composer<Chain>(chain); },
        [&](int64_t j, Composer<Chain>& composer) { body(j / n, j % n, composer); });
  }

  void up_sweep() {
    for_each_node(1, [&](int64_t i, int64_t r, Composer<Chain>& composer) {
      compose_steps(chain, hi(1, i), lo(1, i), b0 + r, composer, place(1, i, r));
    });
    for (int64_t l = 2; l <= levels; ++l)
      for_each_node(l, [&](int64_t i, int64_t r, Composer<Chain>&) {
        Segment<T>& node = place(l, i, r);
        const Segment<T>& left = segment(l - 1, 2 * i, r);
        if (2 * i + 1 == nodes[l - 1]) {
          std::memcpy(node.product, left.product, H * H * sizeof(T));
          std::memcpy(node.shift, left.shift, H * sizeof(T));
          node.size = left.size;
          return;
        }
        const Segment<T>& right = segment(l - 1, 2 * i + 1, r);
        chain.product(H, H, H, right.product, left.product, nullptr, 0, node.product);
        chain.product(1, H, H, right.shift, left.product, left.shift, 0, node.shift);
        measure(node, H);
      });
  }

  void scan_roots() {
    for_each_index(parallel, n, [&](int64_t r) {
      Walker<Chain> walker(chain, 1);
      const int64_t roots = nodes[levels];
      chain.last(b0 + r, 1, carry(levels, roots - 1, r));
      for (int64_t i = roots - 1; i > 0; --i)
        cross(chain, segment(levels, i, r), hi(levels, i), lo(levels, i), b0 + r,
              carry(levels, i, r), carry(levels, i - 1, r), walker);
    });
  }

  void down_sweep() {
    for (int64_t l = levels; l > 1; --l)
      for_each_node(l, [&](int64_t i, int64_t r, Composer<Chain>& composer) {
        const T* g = carry(l, i, r);
        const int64_t left = 2 * i, right = 2 * i + 1;
        if (right == nodes[l - 1]) {
          std::memcpy(carry(l - 1, left, r), g, H * sizeof(T));
          return;
        }
        std::memcpy(carry(l - 1, right, r), g, H * sizeof(T));
        cross(chain, segment(l - 1, right, r), hi(l - 1, right), lo(l - 1, right), b0 + r, g,
              carry(l - 1, left, r), composer.walker);
      });
    for_each_node(1, [&](int64_t i, int64_t r, Composer<Chain>& composer) {
      Walker<Chain>& walker = composer.walker;
      std::memcpy(walker.g, carry(1, i, r), H * sizeof(T));
      walker.template walk<true>(chain, hi(1, i), lo(1, i), b0 + r, 1);
      if (i == 0) chain.first(b0 + r, 1, walker.g);
    });
  }

 private:
  Segment<T>& place(int64_t l, int64_t i, int64_t r) {
    T* map = maps.data + index(l, i, r) * (H * H + H);
    segment(l, i, r) = {map, map + H * H, T(0)};
    return segment(l, i, r);
  }
};

template <class Chain>
void blelloch_scan(const Chain& chain, int64_t levels, const Parallel& parallel) {
  constexpr int64_t kBudget = int64_t(4) << 20;  // what stays in the caches
  if (levels == 0 || chain.steps() == 0) return linear_scan(chain, parallel);
  const int64_t H = chain.state_width();
  const int64_t bytes = BlellochGroup<Chain>::count_nodes(chain.steps(), levels) * (H * H + 2 * H) *
                        int64_t(sizeof(typename Chain::T));
  const int64_t size = max(int64_t(1), kBudget / bytes);
  for (int64_t b = 0; b < chain.batch(); b += size) {
    BlellochGroup<Chain> group(chain, parallel, levels, b, min(size, chain.batch() - b));
    group.up_sweep();
    group.scan_roots();
    group.down_sweep();
  }
}

}  // namespace bppsa::BPPSA_ISA
