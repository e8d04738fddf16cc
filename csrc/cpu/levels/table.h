// The CPU kernels of one instruction set, as a table of functions: the sources in this folder are
// compiled once per level, and choose.cpp picks one table at load.
#pragma once

#include "../../requests/indrnn.h"
#include "../../requests/jacobians.h"
#include "../../requests/linear.h"
#include "../../requests/masks.h"
#include "../../requests/recurrent.h"
#include "../../requests/regularised.h"
#include "../../requests/scans.h"
#include "../../requests/sparse.h"

namespace bppsa {

// KERNEL(name, request, ...): void name(const request&, ..., const Parallel&).
#define BPPSA_KERNELS(KERNEL)                                       \
  KERNEL(dense_scan, DenseScanRequest, const Plan&)                 \
  KERNEL(diagonal_scan, DiagonalScanRequest, const Plan&)           \
  KERNEL(recurrent_forward, RecurrentForwardRequest)                \
  KERNEL(recurrent_backward, RecurrentBackwardRequest, const Plan&) \
  KERNEL(recurrent_jacobian, RecurrentJacobianRequest)              \
  KERNEL(indrnn_forward, IndRnnForwardRequest)                      \
  KERNEL(indrnn_backward, IndRnnBackwardRequest)                    \
  KERNEL(linear_forward, LinearForwardRequest)                      \
  KERNEL(linear_backward, LinearBackwardRequest)                    \
  KERNEL(regularised_forward, RegularisedForwardRequest)            \
  KERNEL(regularised_backward, RegularisedBackwardRequest)          \
  KERNEL(random_mask, MaskRequest)                                  \
  KERNEL(bernoulli, BernoulliRequest)                               \
  KERNEL(masked, MaskedRequest)                                     \
  KERNEL(sparse_forward, SparseForwardRequest)                      \
  KERNEL(sparse_backward, SparseBackwardRequest)                    \
  KERNEL(batch_norm_forward, BatchNormForwardRequest)               \
  KERNEL(batch_norm_backward, BatchNormBackwardRequest)             \
  KERNEL(count_templates, ConvolutionRequest)                       \
  KERNEL(fill_templates, ConvolutionRequest)                        \
  KERNEL(fill_convolution, ConvolutionRequest)                      \
  KERNEL(fill_windows, WindowRequest)                               \
  KERNEL(max_pool, MaxPoolRequest)                                  \
  KERNEL(elementwise, ElementwiseRequest)                           \
  KERNEL(weights, WeightRequest)                                    \
  KERNEL(count_product, SymbolicRequest)                            \
  KERNEL(fill_product, SymbolicRequest)                             \
  KERNEL(multiply, NumericRequest)                                  \
  KERNEL(apply, ApplyRequest)

struct Kernels {
  const char* level;
#define KERNEL(name, request, ...) \
  void (*name)(const request& __VA_OPT__(, ) __VA_ARGS__, const Parallel&);
  BPPSA_KERNELS(KERNEL)
#undef KERNEL
};

#ifdef BPPSA_ISA
namespace BPPSA_ISA {
#define KERNEL(name, request, ...) \
  void name(const request& __VA_OPT__(, ) __VA_ARGS__, const Parallel&);
BPPSA_KERNELS(KERNEL)
#undef KERNEL
}  // namespace BPPSA_ISA

// Defines a kernel as the instance of the template <name>_as for the request's dtype.
#define BPPSA_KERNEL_BY_DTYPE(name, request_type)                                               \
  void name(const request_type& request, const Parallel& parallel) {                            \
    with_real(request.storage,                                                                  \
              [&](auto real) { name##_as<typename decltype(real)::type>(request, parallel); }); \
  }
#endif

// The table for this machine (or for BPPSA_CPU_CAPABILITY, if set), chosen once.
const Kernels& kernels();

}  // namespace bppsa
