#pragma once
// The kernels in clusters (shape.cuh), with PREFIX `extern` declared and without it compiled: these
// alone need a compute capability of 9.0, and are compiled apart, in recurrent_clusters.cu; all
// others are translated to PTX once for all architectures.

#include "forward.cuh"
#include "replay.cuh"

#define BPPSA_CLUSTER_INSTANCES(PREFIX, CELL)                                                \
  PREFIX template void walk_forward_in<CELL, ClusterShape<false>, false>(                    \
      const ForwardView<CELL::scalar_t>&, Launcher&);                                        \
  PREFIX template void walk_forward_in<CELL, ClusterShape<false>, true>(                     \
      const ForwardView<CELL::scalar_t>&, Launcher&);                                        \
  PREFIX template void replay_in<CELL, ClusterShape<true>>(                                  \
      const BackwardView<CELL::scalar_t>&, int64_t, int64_t, const Carries<CELL::scalar_t>&, \
      Launcher&);
