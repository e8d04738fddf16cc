// bppsa::reverse_scan and bppsa::diagonal_scan on CUDA: checks, types and strides; the kernels are
// in dense/ and diagonal/.
//
//   jac_t (T, B, H, H) or decay (T, B, H), grad (T+1, B, H), any strides, one dtype; returns g
//   (T+1, B, H), contiguous, with jac_t[i] the diagonal matrix of decay[i]:
//     g[T] = grad[T],  g[i] = jac_t[i] g[i+1] + grad[i]                       (adjoint false)
//     g[0] = grad[0],  g[i+1] = jac_t[i]ᵀ g[i] + grad[i+1]                    (adjoint true)
//
// The schemas are in the CPU library; this one only adds the implementations.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <limits>
#include <string>

#include "../cpu/torch_glue.h"
#include "dense/scan.cuh"
#include "diagonal/scan.cuh"

namespace bppsa::cuda {
namespace {

constexpr int64_t kMostH = 32768;  // the largest power of two of which H * (H + 1) is an int

/// Checks the operands of `op`, of which the first, named `name`, has `dims` dimensions.
void check_operands(const char* op, const char* name, const Tensor& first, int64_t dims,
                    const Tensor& grad) {
  STD_TORCH_CHECK(first.dim() == dims && grad.dim() == 3, op, ": ", name, " must be ",
                  dims == 4 ? "(T, B, H, H)" : "(T, B, H)", " and grad (T+1, B, H), found ",
                  first.dim(), " and ", grad.dim(), " dimensions");
  const int64_t T = first.size(0), B = first.size(1), H = first.size(2);
  STD_TORCH_CHECK(dims == 3 || first.size(3) == H, op, ": ", name,
                  " must be (T, B, H, H), its last sizes are ", H, " and ", first.size(dims - 1));
  STD_TORCH_CHECK(grad.size(0) == T + 1 && grad.size(1) == B && grad.size(2) == H, op,
                  ": grad must be (", T + 1, ", ", B, ", ", H, ") for this ", name, ", found (",
                  grad.size(0), ", ", grad.size(1), ", ", grad.size(2), ")");
  STD_TORCH_CHECK(grad.scalar_type() == first.scalar_type(), op, ": ", name,
                  " and grad must have one dtype");
  STD_TORCH_CHECK(
      first.is_cuda() && grad.is_cuda() && first.get_device_index() == grad.get_device_index(), op,
      ": ", name, " and grad must be on one CUDA device");
}

/// The tensor; or a contiguous copy, where places inside one of its matrices or vectors (dimensions
/// 2 and on) do not fit the 32 bits that the kernels count them in.
Tensor addressable(const Tensor& tensor) {
  int64_t reach = 0;
  for (int64_t d = 2; d < tensor.dim(); ++d) reach += (tensor.size(d) - 1) * tensor.stride(d);
  const bool fits = reach <= std::numeric_limits<int>::max();
  return fits ? tensor : torch::stable::contiguous(tensor);
}

/// Calls run with a zero of the tensor's dtype.
template <class Run>
void with_dtype(const Tensor& tensor, const Run& run) {
  switch (storage_of(tensor)) {
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
  check_operands("reverse_scan", "jac_t", jac_t, 4, grad);
  const int64_t T = jac_t.size(0), B = jac_t.size(1), H = jac_t.size(2);
  STD_TORCH_CHECK(H >= 1 && H <= kMostH, "reverse_scan: H must be in 1 … ", kMostH, ", found ", H);
  const Plan plan = plan_of(algorithm, chunk, levels);
  Launcher launch(jac_t);
  Tensor g = empty_beside(grad, {T + 1, B, H});
  const Tensor near_jac_t = addressable(jac_t), near_grad = addressable(grad);
  with_dtype(jac_t, [&](auto zero) {
    using scalar_t = decltype(zero);
    const Matrices<scalar_t> matrices{static_cast<const scalar_t*>(near_jac_t.const_data_ptr()),
                                      near_jac_t.stride(0), near_jac_t.stride(1),
                                      static_cast<int>(near_jac_t.stride(2)),
                                      static_cast<int>(near_jac_t.stride(3))};
    const Vectors<const scalar_t> direct{static_cast<const scalar_t*>(near_grad.const_data_ptr()),
                                         near_grad.stride(0), near_grad.stride(1),
                                         static_cast<int>(near_grad.stride(2))};
    const Vectors<scalar_t> out{static_cast<scalar_t*>(g.mutable_data_ptr()), B * H, H, 1};
    scan_dense(DenseChain<scalar_t>{matrices, direct, T, B, static_cast<int>(H)}, out, adjoint,
               plan, launch);
  });
  return g;
}

template <typename scalar_t>
Elements<const scalar_t> elements(const Tensor& tensor) {
  return {static_cast<const scalar_t*>(tensor.const_data_ptr()), tensor.stride(0), tensor.stride(1),
          tensor.stride(2)};
}

Tensor diagonal_scan(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels, bool adjoint) {
  check_operands("diagonal_scan", "decay", decay, 3, grad);
  const int64_t T = decay.size(0), B = decay.size(1), H = decay.size(2);
  const Plan plan = plan_of(algorithm, chunk, levels);
  Launcher launch(decay);
  Tensor g = empty_beside(grad, {T + 1, B, H});
  with_dtype(decay, [&](auto zero) {
    using scalar_t = decltype(zero);
    const Elements<scalar_t> out{static_cast<scalar_t*>(g.mutable_data_ptr()), B * H, H, 1};
    const DiagonalChain<scalar_t> chain{
        elements<scalar_t>(decay), elements<scalar_t>(grad), out, T, H, 0, B * H};
    scan_diagonal(chain, adjoint, plan, launch);
  });
  return g;
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
