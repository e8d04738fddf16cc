// Kernels of all cells whose blocks share a sample in clusters.

#include "../cells/list.h"
#include "recurrent/clusters.cuh"

namespace bppsa::cuda {

#define BPPSA_INSTANCE(NAME, CELL) BPPSA_CLUSTER_INSTANCES(, CELL<float>)
BPPSA_CELLS(BPPSA_INSTANCE)

}  // namespace bppsa::cuda
