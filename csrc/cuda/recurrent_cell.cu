// The kernels of one cell, float and double. Compiled once for each row of cells/list.h, with
// BPPSA_CELL naming it.

#include "recurrent/clusters.cuh"
#include "recurrent/layer.cuh"

namespace bppsa::cuda {

#define BPPSA_LAYER_INSTANCE(REAL)                                                       \
  template void layer_forward<BPPSA_CELL<REAL>>(const ForwardRequest<REAL>&, Launcher&); \
  template void layer_backward<BPPSA_CELL<REAL>>(const BackwardRequest<REAL>&, Launcher&);

BPPSA_CLUSTER_INSTANCES(extern, BPPSA_CELL<float>)

BPPSA_LAYER_INSTANCE(float)
BPPSA_LAYER_INSTANCE(double)

}  // namespace bppsa::cuda
