// Kernels of all cells whose blocks share a sample in clusters.

#include "../cells/formulas.h"
#include "../cells/list.h"
#include "recurrent/clusters.cuh"

namespace bppsa::cuda {

#define CELL(name, formula, ...) BPPSA_CLUSTER_INSTANCES(, formula)
BPPSA_CELLS(CELL)

}  // namespace bppsa::cuda
