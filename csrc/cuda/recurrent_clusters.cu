// Kernels of all cells whose blocks share a sample in clusters.

#include "recurrent/instances.cuh"

namespace bppsa::cuda {

BPPSA_CLUSTER_INSTANCE(, GruCell<float>)
BPPSA_CLUSTER_INSTANCE(, LstmCell<float>)

}  // namespace bppsa::cuda
