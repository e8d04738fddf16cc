// bppsa::reverse_scan and bppsa::diagonal_scan on CUDA; the kernels are in dense/ and diagonal/.
// Arguments and results are those of requests/from_tensors/scans.h.
//
// The schemas are in the CPU library; this one only adds the implementations.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <limits>
#include <string>

#include "../requests/from_tensors/plan.h"
#include "../requests/from_tensors/scans.h"
#include "dense/scan.cuh"
#include "diagonal/scan.cuh"

namespace bppsa::cuda {
namespace {

constexpr int64_t kMostH = 32768;  // the largest power of two of which H * (H + 1) is an int

/// The tensor; or a contiguous copy, where places inside one of its matrices or vectors (dimensions
/// 2 and on) do not fit the 32 bits that the kernels count them in.
Tensor addressable(const Tensor& tensor) {
  int64_t reach = 0;
  for (int64_t d = 2; d < tensor.dim(); ++d) reach += (tensor.size(d) - 1) * tensor.stride(d);
  const bool fits = reach <= std::numeric_limits<int>::max();
  return fits ? tensor : torch::stable::contiguous(tensor);
}

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

Tensor reverse_scan(const Tensor& jac_t, const Tensor& grad, const std::string& algorithm,
                    int64_t chunk, int64_t levels, bool adjoint) {
  const Tensor jac_t_in_reach = addressable(jac_t), grad_in_reach = addressable(grad);
  const auto [request, out] = dense_scan_request(jac_t_in_reach, grad_in_reach, adjoint);
  STD_TORCH_CHECK(request.H >= 1 && request.H <= kMostH, "reverse_scan: H must be in 1 … ", kMostH,
                  ", found ", request.H);
  const Plan plan = plan_of(algorithm, chunk, levels);
  Launcher launch(jac_t);
  with_storage(request.storage, [&, &request = request](auto zero) {
    scan_dense<decltype(zero)>(request, plan, launch);
  });
  return out;
}

Tensor diagonal_scan(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels, bool adjoint) {
  const auto [request, out] = diagonal_scan_request(decay, grad, adjoint);
  const Plan plan = plan_of(algorithm, chunk, levels);
  Launcher launch(decay);
  with_storage(request.storage, [&, &request = request](auto zero) {
    scan_diagonal<decltype(zero)>(request, plan, launch);
  });
  return out;
}

}  // namespace

// For the recurrent chains too.
template void scan_blelloch<float>(const DenseChain<float>&, const Vectors<float>&, int64_t,
                                   Launcher&);
template void scan_blelloch<double>(const DenseChain<double>&, const Vectors<double>&, int64_t,
                                    Launcher&);

}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("reverse_scan", TORCH_BOX(&bppsa::cuda::reverse_scan));
  m.impl("diagonal_scan", TORCH_BOX(&bppsa::cuda::diagonal_scan));
}
