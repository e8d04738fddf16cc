#pragma once
// Diagonal chains: B*H chains of one number each that share nothing.
//   g[T] = u[T]        g[i] = decay[i] g[i+1] + u[i],   i = T-1 … 0, for each element
//
// A thread walks one element of one segment; threads of a warp have neighbouring elements, so that
// a step of a warp reads whole lines where the state is contiguous in memory. A walk waits for
// memory, not for arithmetic: each thread has kStepsAhead steps in flight. Where there are too few
// elements for the machine, segments of time make up for them (chunked, blelloch), as in the dense
// scans: maps of segments, carries through the maps, replays.
//
// A map, (product, shift), is one of an element and is kept in double. It is trusted, element by
// element, by the rule of csrc/scan/folded.h; where it is not, the thread walks the segment.

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "threads.cuh"

namespace bppsa::cuda {

// Any strides, in elements; negative where time runs backwards.
template <typename scalar_t>
struct Elements {
  scalar_t* data;
  int64_t step, sample, state;

  BPPSA_BOTH Elements from_element(int64_t b, int64_t h) const {
    return {data + b * sample + h * state, step, sample, state};
  }
  BPPSA_BOTH scalar_t& operator()(int64_t i) const { return data[i * step]; }
};

/// The adjoint, g[i+1] = decay[i] g[i] + grad[i+1], is the same recurrence read from the other end.
template <typename scalar_t>
Elements<scalar_t> adjoint_of(const Elements<scalar_t>& elements, int64_t last) {
  return {elements.data + last * elements.step, -elements.step, elements.sample, elements.state};
}

template <typename scalar>
struct DiagonalChain {
  using scalar_t = scalar;
  using acc_t = typename Accumulator<scalar_t>::type;

  Elements<const scalar_t> decay, grad;
  Elements<scalar_t> out;
  int64_t T, H;
  int64_t first, count;  // the elements that are worked on, of B*H

  BPPSA_BOTH DiagonalChain from_element(int64_t e) const {
    const int64_t b = (first + e) / H, h = (first + e) % H;
    return {decay.from_element(b, h), grad.from_element(b, h), out.from_element(b, h), T, 1, 0, 1};
  }
};

constexpr int kStepsAhead = 16;  // in flight for each thread of a walk
constexpr int kMapsAhead = 8;    // likewise where maps are walked

/// Calls run(i, decay[i], u[i]) for the steps last-1 … first of an element, in that order.
template <class Chain, class Run>
BPPSA_DEVICE void for_each_step(const Chain& own, int64_t last, int64_t first, const Run& run) {
  using acc_t = typename Chain::acc_t;
  int64_t i = last;
  for (; i - kStepsAhead >= first; i -= kStepsAhead) {
    typename Chain::scalar_t a[kStepsAhead], u[kStepsAhead];
#pragma unroll
    for (int n = 0; n < kStepsAhead; ++n) {
      a[n] = own.decay(i - 1 - n);
      u[n] = own.grad(i - 1 - n);
    }
#pragma unroll
    for (int n = 0; n < kStepsAhead; ++n) {
      run(i - 1 - n, static_cast<acc_t>(a[n]), static_cast<acc_t>(u[n]));
    }
  }
  while (i-- > first) run(i, static_cast<acc_t>(own.decay(i)), static_cast<acc_t>(own.grad(i)));
}

/// Walks an element from g at the end of steps last-1 … first to the g before them. kFinal: these
/// are the true gradients, all but the last of which it writes.
template <bool kFinal, class Chain>
BPPSA_DEVICE typename Chain::acc_t walk_element(const Chain& own, int64_t last, int64_t first,
                                                typename Chain::acc_t g) {
  using acc_t = typename Chain::acc_t;
  for_each_step(own, last, first, [&](int64_t i, acc_t a, acc_t u) {
    if constexpr (kFinal) own.out(i + 1) = static_cast<typename Chain::scalar_t>(g);
    g = a * g + u;
  });
  return g;
}

template <typename acc_t>
struct TrustedElement {
  static constexpr double huge = 0x1p20, tiny = 0;
};
template <>
struct TrustedElement<double> {
  static constexpr double huge = 0x1p20, tiny = 0x1p-900;
};

// The map of one element over one segment, and the least magnitude its product had on the way.
struct ElementMap {
  double product = 1, shift = 0, least = 1;

  BPPSA_DEVICE void append(double a, double u) {
    product *= a;
    shift = a * shift + u;
    least = fabs(product) < least ? fabs(product) : least;
  }
  /// The map of this segment, then that of the one to its left.
  BPPSA_DEVICE ElementMap then(const ElementMap& left) const {
    const double least_left = fabs(product) * left.least;
    return {left.product * product, left.product * shift + left.shift,
            least_left < least ? least_left : least};
  }
  template <typename acc_t>
  BPPSA_DEVICE bool apply(acc_t g, acc_t& out) const {
    out = static_cast<acc_t>(product * g + shift);
    return fabs(product) <= TrustedElement<acc_t>::huge && out - out == 0 &&
           (least >= TrustedElement<acc_t>::tiny || fabs(g) <= 1);
  }
};

// Maps of the nodes of one level: element e of node k.
struct ElementMaps {
  double* data;
  int64_t nodes, count;

  static int64_t size(int64_t nodes, int64_t count) { return 3 * nodes * count; }
  BPPSA_DEVICE ElementMap load(int64_t k, int64_t e) const {
    const double* const p = data + k * count + e;
    return {p[0], p[nodes * count], p[2 * nodes * count]};
  }
  BPPSA_DEVICE void store(int64_t k, int64_t e, const ElementMap& map) const {
    double* const p = data + k * count + e;
    p[0] = map.product;
    p[nodes * count] = map.shift;
    p[2 * nodes * count] = map.least;
  }
};

/// Calls run(k, e) for k in [first, nodes) and all elements, one thread each.
template <class Run>
BPPSA_DEVICE void for_each_element(int64_t first, int64_t nodes, int64_t count, const Run& run) {
  for_each_thread((nodes - first) * count, [&](int64_t n) { run(first + n / count, n % count); });
}

// Segment k covers steps [k * span, min((k + 1) * span, T)).

// Node 0 passes its carry to nobody: it needs no map, here and above.
template <class Chain>
__global__ void __launch_bounds__(kThreadsOfBlock)
    compose_elements_kernel(Chain chain, int64_t span, ElementMaps maps) {
  using acc_t = typename Chain::acc_t;
  for_each_element(1, maps.nodes, chain.count, [&](int64_t k, int64_t e) {
    ElementMap map;
    for_each_step(chain.from_element(e), smaller((k + 1) * span, chain.T), k * span,
                  [&](int64_t, acc_t a, acc_t u) { map.append(a, u); });
    maps.store(k, e, map);
  });
}

// Each node from its two children, or its only one. One element, one node a thread.
static __global__ void __launch_bounds__(kThreadsOfBlock)
    merge_elements_kernel(ElementMaps children, ElementMaps parents) {
  for_each_element(1, parents.nodes, parents.count, [&](int64_t k, int64_t e) {
    const ElementMap left = children.load(2 * k, e);
    const bool alone = 2 * k + 1 == children.nodes;
    parents.store(k, e, alone ? left : children.load(2 * k + 1, e).then(left));
  });
}

// In runs of `group` nodes: from the carry of the last, incoming[p] or u[T], to the carries of all.
template <class Chain>
__global__ void __launch_bounds__(kThreadsOfBlock)
    carry_elements_kernel(Chain chain, int64_t span, ElementMaps maps, int64_t group,
                          const typename Chain::acc_t* incoming, typename Chain::acc_t* carries) {
  using acc_t = typename Chain::acc_t;
  for_each_element(0, ceil_div(maps.nodes, group), chain.count, [&](int64_t p, int64_t e) {
    const Chain own = chain.from_element(e);
    acc_t g = incoming ? incoming[p * chain.count + e] : static_cast<acc_t>(own.grad(chain.T));
    int64_t k = smaller((p + 1) * group, maps.nodes) - 1;
    carries[k * chain.count + e] = g;
    while (k > p * group) {
      const int ahead = static_cast<int>(smaller<int64_t>(k - p * group, kMapsAhead));
      ElementMap next[kMapsAhead];
#pragma unroll
      for (int n = 0; n < kMapsAhead; ++n) {
        if (n < ahead) next[n] = maps.load(k - n, e);
      }
#pragma unroll
      for (int n = 0; n < kMapsAhead; ++n) {
        if (n >= ahead) continue;
        acc_t before;
        if (!next[n].apply(g, before)) {
          report_untrusted();
          const int64_t first = (k - n) * span;
          before = walk_element<false>(own, smaller(first + span, chain.T), first, g);
        }
        g = before;
        carries[(k - n - 1) * chain.count + e] = g;
      }
      k -= ahead;
    }
  });
}

template <class Chain>
__global__ void __launch_bounds__(kThreadsOfBlock)
    replay_elements_kernel(Chain chain, int64_t span, int64_t nodes,
                           const typename Chain::acc_t* carries) {
  using scalar_t = typename Chain::scalar_t;
  using acc_t = typename Chain::acc_t;
  for_each_element(0, nodes, chain.count, [&](int64_t k, int64_t e) {
    const Chain own = chain.from_element(e);
    const acc_t carry =
        carries ? carries[k * chain.count + e] : static_cast<acc_t>(own.grad(chain.T));
    const int64_t last = smaller((k + 1) * span, chain.T);
    const acc_t g = walk_element<true>(own, last, k * span, carry);
    if (k == 0) own.out(0) = static_cast<scalar_t>(g);
  });
}

template <class Chain>
void replay_elements(const Chain& chain, int64_t span, int64_t nodes,
                     const typename Chain::acc_t* carries, Launcher& launch) {
  launch_threads(launch, "replay elements", replay_elements_kernel<Chain>, nodes * chain.count,
                 chain, span, nodes, carries);
}

// The levels of a tree over segments of `span` steps, each half as many nodes as the one below;
// the chunked scan is a tree of one level. The top level is scanned in sequence.
template <class Chain>
void scan_tree(const Chain& chain, int64_t span, int64_t levels, Launcher& launch) {
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

/// The scan of a diagonal chain by the algorithm of that name. The arguments have been checked.
template <typename scalar_t>
void scan_diagonal(DiagonalChain<scalar_t> chain, bool adjoint, const std::string& algorithm,
                   int64_t chunk, int64_t levels, Launcher& launch) {
  if (chain.count == 0) return;
  if (adjoint) {
    chain.decay = adjoint_of(chain.decay, chain.T > 0 ? chain.T - 1 : 0);
    chain.grad = adjoint_of(chain.grad, chain.T);
    chain.out = adjoint_of(chain.out, chain.T);
  }
  if (algorithm == "chunked" && chunk < chain.T) return scan_tree(chain, chunk, 1, launch);
  if (algorithm == "blelloch" && levels > 0 && chain.T > 2) {
    return scan_tree(chain, 2, levels, launch);
  }
  replay_elements(chain, std::max<int64_t>(chain.T, 1), 1,
                  static_cast<const typename Accumulator<scalar_t>::type*>(nullptr), launch);
}

}  // namespace bppsa::cuda
