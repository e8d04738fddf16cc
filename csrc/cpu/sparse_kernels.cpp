// The sparse layers' kernels of one instruction set; see kernels.cpp.
#include "../sparse/layer.h"

namespace bppsa::BPPSA_ISA {

void sparse_forward(const SparseForwardArgs& args, const Parallel& parallel) {
  if (args.storage == Storage::f64) return sparse_layer_forward<double>(args, parallel);
  sparse_layer_forward<float>(args, parallel);
}

void sparse_backward(const SparseBackwardArgs& args, const Parallel& parallel) {
  if (args.storage == Storage::f64) return sparse_layer_backward<double>(args, parallel);
  sparse_layer_backward<float>(args, parallel);
}

}  // namespace bppsa::BPPSA_ISA
