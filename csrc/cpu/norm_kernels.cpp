// The kernels of batch normalisation of one instruction set, by dtype; see kernels.cpp.
#include "../sparse/norm.h"

namespace bppsa::BPPSA_ISA {
namespace {

void forward(const NormForwardArgs& args, const Parallel& parallel) {
  if (args.storage == Storage::f64) return norm_forward_as<double>(args, parallel);
  norm_forward_as<float>(args, parallel);
}

void backward(const NormBackwardArgs& args, const Parallel& parallel) {
  if (args.storage == Storage::f64) return norm_backward_as<double>(args, parallel);
  norm_backward_as<float>(args, parallel);
}

}  // namespace

extern const NormKernels norm_table;
const NormKernels norm_table = {forward, backward};

}  // namespace bppsa::BPPSA_ISA
