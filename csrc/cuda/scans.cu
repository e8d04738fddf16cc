// bppsa::reverse_scan and bppsa::diagonal_scan on CUDA; the kernels are in dense/ and diagonal/.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "../operators/scans.h"
#include "dense/scan.cuh"
#include "diagonal/scan.cuh"

namespace bppsa::cuda {
namespace {

constexpr int64_t kMostH = 32768;  // the largest power of two of which H * (H + 1) is an int

/// Calls run with a zero of the type of numbers that lie in memory as `storage` says.
template <class Run>
void with_storage(Storage storage, const Run& run) {
  switch (storage) {
    case Storage::f32:
      return run(float{});
    case Storage::f64:
      return run(double{});
    case Storage::f16:
      return run(torch::headeronly::Half{});
    case Storage::bf16:
      return run(torch::headeronly::BFloat16{});
  }
}

struct Device {
  static Tensor empty(const Tensor& like, Sizes size) { return empty_beside(like, size); }

  static void run(const DenseScanRequest& request, const Plan& plan, const Tensor& out) {
    STD_TORCH_CHECK(request.H >= 1 && request.H <= kMostH, "reverse_scan: H must be in 1 … ",
                    kMostH, ", found ", request.H);
    Launcher launch(out);
    with_storage(request.storage,
                 [&](auto zero) { scan_dense<decltype(zero)>(request, plan, launch); });
  }
  static void run(const DiagonalScanRequest& request, const Plan& plan, const Tensor& out) {
    Launcher launch(out);
    with_storage(request.storage,
                 [&](auto zero) { scan_diagonal<decltype(zero)>(request, plan, launch); });
  }
};

}  // namespace

// For the recurrent chains too.
template void scan_blelloch<float>(const DenseChain<float>&, const Vectors<float>&, int64_t,
                                   Launcher&);
template void scan_blelloch<double>(const DenseChain<double>&, const Vectors<double>&, int64_t,
                                    Launcher&);

}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("reverse_scan", TORCH_BOX(&bppsa::reverse_scan<bppsa::cuda::Device>));
  m.impl("diagonal_scan", TORCH_BOX(&bppsa::diagonal_scan<bppsa::cuda::Device>));
}
