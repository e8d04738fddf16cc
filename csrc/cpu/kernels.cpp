// The CPU kernels of one instruction set: cells x scan algorithms, instantiated by dtype
// and vector width. Compiled once per level; see isa.h.
#include "kernels.h"

#include "../cells/dense.h"
#include "../cells/diagonal.h"
#include "../scan/folded.h"
#include "../scan/scan.h"

namespace bppsa::BPPSA_ISA {

// In recurrent_kernels.cpp.
void recurrent_forward(const RecurrentForwardArgs& args, const Parallel& parallel);
void recurrent_backward(const RecurrentBackwardArgs& args, const Plan& plan,
                        const Parallel& parallel);
// In jacobian_kernels.cpp.
extern const JacobianKernels jacobian_kernels;

// In sparse_kernels.cpp.
void sparse_forward(const SparseForwardArgs& args, const Parallel& parallel);
void sparse_backward(const SparseBackwardArgs& args, const Parallel& parallel);

namespace {

template <typename S>
void dense_scan_as(const DenseScanArgs& args, const Plan& plan, const Parallel& parallel) {
  scan(DenseCell<S>(args), plan, parallel);
}

void dense_scan(const DenseScanArgs& args, const Plan& plan, const Parallel& parallel) {
  switch (args.storage) {
    case Storage::f32:
      return dense_scan_as<float>(args, plan, parallel);
    case Storage::f64:
      return dense_scan_as<double>(args, plan, parallel);
    case Storage::bf16:
      return dense_scan_as<BFloat16>(args, plan, parallel);
    case Storage::f16:
      return dense_scan_as<Float16>(args, plan, parallel);
  }
}

template <typename S>
void diagonal_scan_as(const DiagonalScanArgs& args, const Plan& plan, const Parallel& parallel) {
  constexpr int kBlock = 64;
  switch (plan.algorithm) {
    case Algorithm::linear:
      return linear_scan(DiagonalCell<S, kBlock>(args), parallel);
    case Algorithm::chunked:
      return folded_scan(DiagonalCell<S, kBlock>(args), plan.chunk, parallel);
    case Algorithm::blelloch:
      return blelloch_scan(DiagonalCell<S, 1>(args), plan.levels, parallel);
  }
}

void diagonal_scan(const DiagonalScanArgs& args, const Plan& plan, const Parallel& parallel) {
  switch (args.storage) {
    case Storage::f32:
      return diagonal_scan_as<float>(args, plan, parallel);
    case Storage::f64:
      return diagonal_scan_as<double>(args, plan, parallel);
    case Storage::bf16:
      return diagonal_scan_as<BFloat16>(args, plan, parallel);
    case Storage::f16:
      return diagonal_scan_as<Float16>(args, plan, parallel);
  }
}

}  // namespace

#define BPPSA_STRING_(x) #x
#define BPPSA_STRING(x) BPPSA_STRING_(x)
extern const Kernels table;
const Kernels table = {BPPSA_STRING(BPPSA_ISA), dense_scan,     diagonal_scan,   recurrent_forward,
                       recurrent_backward,      sparse_forward, sparse_backward, &jacobian_kernels};

}  // namespace bppsa::BPPSA_ISA
