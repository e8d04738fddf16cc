#pragma once
// A tree over segments of a chain, and what its phases hand to each other.

#include <algorithm>

#include "../../scan/tree.h"
#include "launcher.cuh"
#include "numbers.cuh"

namespace bppsa::cuda {

// The carry of a segment, g at its end: N numbers for each segment k and sample b.
template <typename T>
struct Carries {
  T* data;
  int64_t B;
  int N;

  BPPSA_BOTH T* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * N; }
  BPPSA_BOTH explicit operator bool() const { return data != nullptr; }
};

// The product (A | b) of a segment's steps: column by column, N rows in each of N + 1 columns. A
// *node* is a segment whose carry another segment is waiting for, or a run of such segments.
template <typename T>
struct Products {
  T* data;
  int64_t nodes, B;
  int N;

  BPPSA_BOTH int64_t size() const { return int64_t{N} * (N + 1); }
  BPPSA_BOTH T* operator()(int64_t k, int64_t b) const { return data + (k * B + b) * size(); }
};

// The verbs of a tree (scan/tree.h), and their scratch: maps and carries of the nodes of all
// levels, of as many samples at a time as the launcher's limit holds. Node 0 of a level passes its
// carry to nobody: it needs no map. What is launched, Phases says, of samples b … b + n - 1
// (work_on):
//
//   Map, Real; map_size(), carry_size()   the types and numbers of a node's map and carry
//   maps(data, nodes, samples)            a view of the maps of a level
//   compose(span, maps, handoff)          the maps of the lowest level; with a handoff also the
//                                         chain's last segment, and the carry of the tree's last
//                                         one
//   merge(children, parents)              the maps of a level from those of the one below
//   carry(span, maps, group, incoming, carries)
//                                         carries of groups of nodes; those that enter the groups
//                                         are `incoming`, or u[T] without
//   replay(span, nodes, carries)
template <class Phases>
class SegmentTree {
 public:
  using Real = typename Phases::Real;

  /// before_last: the tree ends before the chain's last segment, whose carry is known.
  SegmentTree(Phases phases, const Tree& tree, bool before_last, int64_t batch, Launcher& launch)
      : phases_(phases), tree_(tree), before_last_(before_last), batch_(batch) {
    const int64_t nodes = tree.nodes_before(tree.levels), maps = phases.map_size();
    const int64_t bytes = maps * sizeof(typename Phases::Map) + phases.carry_size() * sizeof(Real);
    const int64_t room = static_cast<int64_t>(launch.scratch_limit) / bytes / nodes;
    parts_ = {tree.roots(), std::clamp<int64_t>(room, 1, batch)};
    maps_ = launch.template allocate<typename Phases::Map>(nodes * parts_.samples * maps);
    carries_ = launch.template allocate<Real>(nodes * parts_.samples * phases.carry_size());
  }

  void scan() { scan_tree(tree_, parts_, batch_, *this); }

  void compose(const TreePart& part) {
    samples_ = part.n;
    phases_.work_on(part.b, part.n);
    phases_.compose(span(0), maps(0), before_last_ ? carries(0) : none());
  }
  void merge(const TreePart&, int64_t level) { phases_.merge(maps(level - 1), maps(level)); }
  void carry_roots(const TreePart&) {
    const int64_t roots = tree_.roots();
    if (!before_last_) return carry_groups(tree_.top(), roots, none());
    if (roots > 1) carry_groups(0, roots, {carries(0)(roots - 1, 0), samples_, carries(0).N});
  }
  void carry(const TreePart&, int64_t level) { carry_groups(level, 2, carries(level + 1)); }
  void replay(const TreePart&) { phases_.replay(span(0), tree_.nodes(0), carries(0)); }

 private:
  int64_t span(int64_t level) const { return tree_.segments.span << level; }
  /// Nodes of all samples, of the levels below one.
  int64_t before(int64_t level) const { return tree_.nodes_before(level) * samples_; }
  auto maps(int64_t level) const {
    return phases_.maps(maps_ + before(level) * phases_.map_size(), tree_.nodes(level), samples_);
  }
  Carries<Real> carries(int64_t level) const {
    const int size = phases_.carry_size();
    return {carries_ + before(level) * size, samples_, size};
  }
  Carries<Real> none() const { return {nullptr, samples_, phases_.carry_size()}; }
  void carry_groups(int64_t level, int64_t group, const Carries<Real>& incoming) {
    phases_.carry(span(level), maps(level), group, incoming, carries(level));
  }

  Phases phases_;
  const Tree tree_;
  const bool before_last_;
  const int64_t batch_;
  TreeParts parts_;
  int64_t samples_;  // of the part that is worked on
  typename Phases::Map* maps_;
  Real* carries_;
};

}  // namespace bppsa::cuda
