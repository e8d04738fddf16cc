#pragma once
// The recurrent chains of every cell and type, compiled in the recurrent_<cell>.cu files, so that
// they can be compiled side by side; the dense tree that they share is compiled in reverse_scan.cu.

#include "projection.cuh"

#define BPPSA_DENSE_TREE_INSTANCE(PREFIX, TYPE)                                      \
  PREFIX template void scan_blelloch<DenseCell<TYPE>>(const Chain<DenseCell<TYPE>>&, \
                                                      const Vectors<TYPE>&, int64_t, Launcher&);

#define BPPSA_RECURRENT_INSTANCE(PREFIX, CELL)                                                     \
  PREFIX template void recurrent_forward<CELL>(ForwardView<CELL::scalar_t>,                        \
                                               const Inputs<CELL::scalar_t>&, int64_t, Launcher&); \
  PREFIX template void recurrent_backward<CELL>(                                                   \
      const BackwardView<CELL::scalar_t>&, const std::string&, int64_t, int64_t,                   \
      const Inputs<CELL::scalar_t>&, int64_t, const CELL::scalar_t*, CELL::scalar_t*,              \
      const ParameterGradients<CELL::scalar_t>&, Launcher&);

#define BPPSA_AGAIN_INSTANCE(PREFIX, CELL)                                             \
  PREFIX template void gates_again<CELL>(const BackwardView<CELL::scalar_t>&,          \
                                         const Inputs<CELL::scalar_t>&, int64_t,       \
                                         const CELL::scalar_t*, const CELL::scalar_t*, \
                                         const CELL::scalar_t*, Quad<CELL::scalar_t>*, Launcher&);

#define BPPSA_PROJECTED_INSTANCE(PREFIX, CELL)                                             \
  PREFIX template void projected_forward<CELL>(                                            \
      ForwardView<CELL::scalar_t>, const Projection<CELL::scalar_t>&,                      \
      const Inputs<CELL::scalar_t>&, int64_t, CELL::scalar_t*, Launcher&);                 \
  PREFIX template void projected_backward<CELL>(                                           \
      BackwardView<CELL::scalar_t>, const Projection<CELL::scalar_t>&, const std::string&, \
      int64_t, int64_t, const Inputs<CELL::scalar_t>&, int64_t, const CELL::scalar_t*,     \
      CELL::scalar_t*, ParameterGradients<CELL::scalar_t>, CELL::scalar_t*, Launcher&);

// The kernels in clusters (shape.cuh): these alone need a compute capability of 9.0, and are
// compiled apart, in recurrent_clusters.cu; all others are translated to PTX once for all
// architectures.
#define BPPSA_CLUSTER_INSTANCE(PREFIX, CELL)                                                      \
  PREFIX template void walk_forward_in<CELL, ClusterShape<false>, false>(                         \
      const ForwardView<CELL::scalar_t>&, Launcher&);                                             \
  PREFIX template void walk_forward_in<CELL, ClusterShape<false>, true>(                          \
      const ForwardView<CELL::scalar_t>&, Launcher&);                                             \
  PREFIX template void replay_in<CELL, ClusterShape<true>>(                                       \
      const BackwardView<CELL::scalar_t>&, int64_t, int64_t, const StateCarries<CELL::scalar_t>&, \
      Launcher&);

namespace bppsa::cuda {

template <typename T>
using RnnTanh = RnnCell<T, Phi::tanh>;
template <typename T>
using RnnRelu = RnnCell<T, Phi::relu>;

BPPSA_DENSE_TREE_INSTANCE(extern, float)
BPPSA_DENSE_TREE_INSTANCE(extern, double)

BPPSA_CLUSTER_INSTANCE(extern, GruCell<float>)
BPPSA_CLUSTER_INSTANCE(extern, LstmCell<float>)

BPPSA_RECURRENT_INSTANCE(extern, RnnTanh<float>)
BPPSA_RECURRENT_INSTANCE(extern, RnnTanh<double>)
BPPSA_RECURRENT_INSTANCE(extern, RnnRelu<float>)
BPPSA_RECURRENT_INSTANCE(extern, RnnRelu<double>)
BPPSA_RECURRENT_INSTANCE(extern, GruCell<float>)
BPPSA_RECURRENT_INSTANCE(extern, GruCell<double>)
BPPSA_RECURRENT_INSTANCE(extern, LstmCell<float>)
BPPSA_RECURRENT_INSTANCE(extern, LstmCell<double>)

BPPSA_AGAIN_INSTANCE(extern, GruCell<float>)
BPPSA_AGAIN_INSTANCE(extern, GruCell<double>)
BPPSA_AGAIN_INSTANCE(extern, LstmCell<float>)
BPPSA_AGAIN_INSTANCE(extern, LstmCell<double>)
BPPSA_PROJECTED_INSTANCE(extern, LstmCell<float>)
BPPSA_PROJECTED_INSTANCE(extern, LstmCell<double>)

}  // namespace bppsa::cuda
