#pragma once
// The phases of a scan over diagonal chains: maps of segments, merged maps, carries through the
// maps, replays. One element of one node a thread.

#include "../device/segments.cuh"
#include "../device/threads.cuh"
#include "../device/untrusted.cuh"
#include "chain.cuh"
#include "map.cuh"

namespace bppsa::cuda {

constexpr int kMapsAhead = 8;  // in flight for each thread that walks maps

/// Calls run(k, e) for k in [first, nodes) and all elements, one thread each.
template <class Run>
BPPSA_DEVICE void for_each_element(int64_t first, int64_t nodes, int64_t count, const Run& run) {
  for_each_thread((nodes - first) * count, [&](int64_t n) { run(first + n / count, n % count); });
}

// Node 0 passes its carry to nobody: it needs no map, here and above.
template <class Chain>
__global__ void __launch_bounds__(kThreadsOfBlock)
    compose_elements_kernel(Chain chain, int64_t span, ElementMaps maps) {
  using acc_t = typename Chain::acc_t;
  const Segments segments{chain.T, span};
  for_each_element(1, maps.nodes, chain.count, [&](int64_t k, int64_t e) {
    ElementMap map;
    for_each_step(chain.from_element(e), segments.hi(k), segments.lo(k),
                  [&](int64_t, acc_t a, acc_t u) { map.append(a, u); });
    maps.store(k, e, map);
  });
}

// Each node from its two children, or its only one.
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
  const Segments segments{chain.T, span};
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
          before = walk_element<false>(own, segments.hi(k - n), segments.lo(k - n), g);
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
  const Segments segments{chain.T, span};
  for_each_element(0, nodes, chain.count, [&](int64_t k, int64_t e) {
    const Chain own = chain.from_element(e);
    const acc_t carry =
        carries ? carries[k * chain.count + e] : static_cast<acc_t>(own.grad(chain.T));
    const acc_t g = walk_element<true>(own, segments.hi(k), segments.lo(k), carry);
    if (k == 0) own.out(0) = static_cast<scalar_t>(g);
  });
}

template <class Chain>
void replay_elements(const Chain& chain, int64_t span, int64_t nodes,
                     const typename Chain::acc_t* carries, Launcher& launch) {
  launch_threads(launch, "replay elements", replay_elements_kernel<Chain>, nodes * chain.count,
                 chain, span, nodes, carries);
}

}  // namespace bppsa::cuda
