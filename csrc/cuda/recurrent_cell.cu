// The kernels of one cell, float and double. Compiled once for each row of cells/list.h, with
// BPPSA_CELL the formula of BPPSA_CELL_FILE.

#include BPPSA_CELL_FILE

#include "recurrent/clusters.cuh"
#include "recurrent/layer.cuh"

namespace bppsa::cuda {

BPPSA_CLUSTER_INSTANCES(extern, BPPSA_CELL)

#define BPPSA_LAYER_INSTANCES(CELL)                                                    \
  template void layer_forward<CELL>(const RecurrentForwardRequest&, void*, Launcher&); \
  template void layer_backward<CELL>(const RecurrentBackwardRequest&, const Plan&, Launcher&);

using Float = Cell<BPPSA_CELL, float>;
using Double = Cell<BPPSA_CELL, double>;
BPPSA_LAYER_INSTANCES(Float)
BPPSA_LAYER_INSTANCES(Double)

}  // namespace bppsa::cuda
