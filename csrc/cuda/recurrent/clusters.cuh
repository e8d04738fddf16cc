#pragma once
// The kernels in clusters (shape.cuh), with PREFIX `extern` declared and without it compiled: these
// alone need a compute capability of 9.0, and are compiled apart, in recurrent_clusters.cu; all
// others are translated to PTX once for all architectures.

#include "forward.cuh"
#include "replay.cuh"

namespace bppsa::cuda {

template <class Formula>
using FloatCell = Cell<Formula, float>;

}  // namespace bppsa::cuda

#define BPPSA_CLUSTER_INSTANCES(PREFIX, FORMULA)                                        \
  PREFIX template void walk_forward_in<FloatCell<FORMULA>, ClusterShape<false>, false>( \
      const ForwardView<float>&, Launcher&);                                            \
  PREFIX template void walk_forward_in<FloatCell<FORMULA>, ClusterShape<false>, true>(  \
      const ForwardView<float>&, Launcher&);                                            \
  PREFIX template void replay_in<FloatCell<FORMULA>, ClusterShape<true>>(               \
      const BackwardView<float>&, const Windows&, const Carries<float>&, Launcher&);
