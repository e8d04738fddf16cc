// The verbs of a tree (tree.h) over a chain of matrices.
//
// The first node of a level passes its carry to nobody and needs no map. A chunked scan does not
// compose its last segment, whose carry is known from the start: it replays it, beside the others'
// composing.
#pragma once

#include "maps.h"
#include "tree.h"

namespace bppsa::BPPSA_ISA {

template <class Chain>
class ChainTree {
 public:
  using T = typename Chain::T;

  ChainTree(const Chain& chain, const Parallel& parallel, const Tree& tree, const TreeParts& parts,
            bool replays_last)
      : chain_(chain),
        parallel_(parallel),
        tree_(tree),
        replays_last_(replays_last),
        S_(chain.state_width()),
        nodes_(tree.nodes_below(parts.roots) * parts.samples),
        maps_(nodes_ * (S_ * S_ + S_)),
        segments_(nodes_),
        carries_(nodes_ * S_),
        incoming_(parts.samples * S_) {}

  void compose(const TreePart& part) {
    place(part);
    const bool at_end = part.end == tree_.roots();
    if (at_end && !replays_last_) chain_.last(part.b, part.n, incoming_.data);
    const SampleGroups groups(part.n, parallel_.threads);
    const int64_t replays = at_end && replays_last_ ? groups.count : 0;
    const int64_t first = max(begin_[0], int64_t(1));
    for_each_index(
        parallel_, replays + (end_[0] - first) * part.n, [&] { return Composer<Chain>(chain_); },
        [&](int64_t j, Composer<Chain>& composer) {
          if (j < replays) return replay_last(part, groups.begin(j), groups.size(j));
          const int64_t i = first + (j - replays) / part.n, r = (j - replays) % part.n;
          compose_steps(chain_, tree_.hi(0, i), tree_.lo(0, i), part.b + r, composer,
                        new_map(0, i, r));
        });
  }

  void merge(const TreePart& part, int64_t l) {
    for_each_node(part, l, max(begin_[l], int64_t(1)), [&](int64_t i, int64_t r, auto&) {
      Segment<T>& node = new_map(l, i, r);
      const Segment<T>& left = map(l - 1, 2 * i, r);
      if (2 * i + 1 == end_[l - 1]) {
        std::memcpy(node.product, left.product, S_ * S_ * sizeof(T));
        std::memcpy(node.shift, left.shift, S_ * sizeof(T));
        node.size = left.size;
        return;
      }
      const Segment<T>& right = map(l - 1, 2 * i + 1, r);
      chain_.product(S_, right.product, left.product, nullptr, node.product);
      chain_.product(1, right.shift, left.product, left.shift, node.shift);
      measure(node, S_);
    });
  }

  void carry_roots(const TreePart& part) {
    for_each_index(
        parallel_, part.n, [&] { return Walker<Chain>(chain_, 1); },
        [&](int64_t r, Walker<Chain>& walker) {
          const int64_t top = tree_.top();
          std::memcpy(carry_into(top, part.end - 1, r), incoming(r), S_ * sizeof(T));
          for (int64_t i = part.end - 1; i > 0 && i >= part.first; --i)
            cross_node(part, top, i, r, carry_into(top, i, r),
                       i > part.first ? carry_into(top, i - 1, r) : incoming(r), walker);
        });
  }

  // From the nodes of level l + 1 to their children.
  void carry(const TreePart& part, int64_t l) {
    for_each_node(part, l + 1, begin_[l + 1], [&](int64_t i, int64_t r, Walker<Chain>& walker) {
      const T* g = carry_into(l + 1, i, r);
      const int64_t left = 2 * i, right = 2 * i + 1;
      if (right == end_[l]) {
        std::memcpy(carry_into(l, left, r), g, S_ * sizeof(T));
        return;
      }
      std::memcpy(carry_into(l, right, r), g, S_ * sizeof(T));
      cross_node(part, l, right, r, g, carry_into(l, left, r), walker);
    });
  }

  void replay(const TreePart& part) {
    // A chunk's samples are replayed side by side, a short segment's one by one.
    const SampleGroups groups(part.n, replays_last_ ? parallel_.threads : part.n);
    for_each_index(parallel_, (end_[0] - begin_[0]) * groups.count, [&](int64_t j) {
      const int64_t i = begin_[0] + j / groups.count, group = j % groups.count;
      const int64_t r = groups.begin(group), n = groups.size(group);
      Walker<Chain> walker(chain_, n);
      std::memcpy(walker.g, carry_into(0, i, r), n * S_ * sizeof(T));
      walker.template walk<true>(chain_, tree_.hi(0, i), tree_.lo(0, i), part.b + r, n);
      if (i == 0) chain_.first(part.b + r, n, walker.g);
    });
  }

 private:
  // Where the nodes of each level begin: maps and carries lie node by node, sample by sample.
  void place(const TreePart& part) {
    int64_t total = 0;
    for (int64_t l = 0; l <= tree_.top(); ++l) {
      begin_[l] = part.first << (tree_.top() - l);
      end_[l] = min(part.end << (tree_.top() - l), tree_.nodes(l));
      offset_[l] = total - begin_[l];
      total += end_[l] - begin_[l];
    }
    samples_ = part.n;
  }
  int64_t index(int64_t l, int64_t i, int64_t r) const { return (offset_[l] + i) * samples_ + r; }
  T* carry_into(int64_t l, int64_t i, int64_t r) const {
    return carries_.data + index(l, i, r) * S_;
  }
  T* incoming(int64_t r) const { return incoming_.data + r * S_; }
  const Segment<T>& map(int64_t l, int64_t i, int64_t r) const {
    return segments_.data[index(l, i, r)];
  }
  Segment<T>& new_map(int64_t l, int64_t i, int64_t r) {
    T* const map = maps_.data + index(l, i, r) * (S_ * S_ + S_);
    return segments_.data[index(l, i, r)] = {map, map + S_ * S_, T(0)};
  }

  template <class Body>
  void for_each_node(const TreePart& part, int64_t l, int64_t first, const Body& body) const {
    for_each_index(
        parallel_, (end_[l] - first) * part.n, [&] { return Walker<Chain>(chain_, 1); },
        [&](int64_t j, Walker<Chain>& walker) { body(first + j / part.n, j % part.n, walker); });
  }

  void cross_node(const TreePart& part, int64_t l, int64_t i, int64_t r, const T* g, T* out,
                  Walker<Chain>& walker) const {
    cross(chain_, map(l, i, r), tree_.hi(l, i), tree_.lo(l, i), part.b + r, g, out, walker);
  }

  // The segment after the tree's last one.
  void replay_last(const TreePart& part, int64_t r, int64_t n) const {
    Walker<Chain> walker(chain_, n);
    chain_.last(part.b + r, n, walker.g);
    walker.template walk<true>(chain_, chain_.steps(), tree_.segments.steps, part.b + r, n);
    std::memcpy(incoming(r), walker.g, n * S_ * sizeof(T));
  }

  const Chain& chain_;
  const Parallel& parallel_;
  const Tree tree_;
  const bool replays_last_;
  const int64_t S_, nodes_;
  const Buffer<T> maps_;
  const Buffer<Segment<T>> segments_;
  const Buffer<T> carries_;
  const Buffer<T> incoming_;  // the carry into a part's last root, a row a sample
  int64_t begin_[kMaxLevels], end_[kMaxLevels], offset_[kMaxLevels], samples_;
};

}  // namespace bppsa::BPPSA_ISA
