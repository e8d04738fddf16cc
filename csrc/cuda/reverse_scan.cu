// bppsa::reverse_scan on CUDA: checks, types and strides; the kernels are in the headers beside
// this.
//
//   jac_t (T, B, H, H), grad (T+1, B, H), any strides, one dtype; returns g (T+1, B, H),
//   contiguous:
//     g[T] = grad[T],  g[i] = jac_t[i] g[i+1] + grad[i]                       (adjoint false)
//     g[0] = grad[0],  g[i+1] = jac_t[i]ᵀ g[i] + grad[i+1]                    (adjoint true)
//
// The schema is in the CPU library; this one only adds the implementation.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <limits>
#include <string>

#include "recurrent/instances.cuh"
#include "scan.cuh"

namespace bppsa::cuda {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

constexpr int64_t kMostH = 32768;  // H * (H + 1) must be an int

void check_arguments(const Tensor& jac_t, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels) {
  STD_TORCH_CHECK(jac_t.dim() == 4 && grad.dim() == 3,
                  "reverse_scan: jac_t must be (T, B, H, H) and grad (T+1, B, H), found ",
                  jac_t.dim(), " and ", grad.dim(), " dimensions");
  const int64_t T = jac_t.size(0), B = jac_t.size(1), H = jac_t.size(2);
  STD_TORCH_CHECK(jac_t.size(3) == H,
                  "reverse_scan: jac_t must be (T, B, H, H), its last sizes are ", H, " and ",
                  jac_t.size(3));
  STD_TORCH_CHECK(grad.size(0) == T + 1 && grad.size(1) == B && grad.size(2) == H,
                  "reverse_scan: grad must be (", T + 1, ", ", B, ", ", H,
                  ") for this jac_t, found (", grad.size(0), ", ", grad.size(1), ", ", grad.size(2),
                  ")");
  STD_TORCH_CHECK(H >= 1 && H <= kMostH, "reverse_scan: H must be in 1 … ", kMostH, ", found ", H);
  STD_TORCH_CHECK(grad.scalar_type() == jac_t.scalar_type(),
                  "reverse_scan: jac_t and grad must have one dtype");
  STD_TORCH_CHECK(
      jac_t.is_cuda() && grad.is_cuda() && jac_t.get_device_index() == grad.get_device_index(),
      "reverse_scan: jac_t and grad must be on one CUDA device");
  STD_TORCH_CHECK(
      algorithm == "linear" || (algorithm == "chunked" && chunk >= 1) ||
          (algorithm == "blelloch" && levels >= 0 && levels < 63),
      "reverse_scan: algorithm must be linear, chunked with chunk >= 1 or blelloch with "
      "levels in 0 … ceil(log2(T)), found ",
      algorithm, " with chunk ", chunk, " and levels ", levels);
}

/// The tensor; or a contiguous copy, where places inside one of its matrices or vectors (dimensions
/// 2 and on) do not fit the 32 bits that the kernels count them in.
Tensor addressable(const Tensor& tensor) {
  int64_t reach = 0;
  for (int64_t d = 2; d < tensor.dim(); ++d) reach += (tensor.size(d) - 1) * tensor.stride(d);
  const bool fits = reach <= std::numeric_limits<int>::max();
  return fits ? tensor : torch::stable::contiguous(tensor);
}

template <typename scalar_t>
void run(const Tensor& jac_t, const Tensor& grad, Tensor& g, const std::string& algorithm,
         int64_t chunk, int64_t levels, bool adjoint, Launcher& launch) {
  const int64_t T = jac_t.size(0), B = jac_t.size(1), H = jac_t.size(2);
  const DenseCell<scalar_t> cell{
      static_cast<const scalar_t*>(jac_t.const_data_ptr()), jac_t.stride(0), jac_t.stride(1),
      static_cast<int>(jac_t.stride(2)), static_cast<int>(jac_t.stride(3))};
  const Vectors<const scalar_t> direct{static_cast<const scalar_t*>(grad.const_data_ptr()),
                                       grad.stride(0), grad.stride(1),
                                       static_cast<int>(grad.stride(2))};
  const Vectors<scalar_t> out{static_cast<scalar_t*>(g.mutable_data_ptr()), B * H, H, 1};
  scan_dense(cell, direct, out, T, B, H, adjoint, algorithm, chunk, levels, launch);
}

Tensor reverse_scan(const Tensor& jac_t, const Tensor& grad, const std::string& algorithm,
                    int64_t chunk, int64_t levels, bool adjoint) {
  check_arguments(jac_t, grad, algorithm, chunk, levels);
  Launcher launch(jac_t);
  const std::vector<int64_t> size{grad.size(0), grad.size(1), grad.size(2)};
  Tensor g = torch::stable::new_empty(grad, size);
  const Tensor jac_t_reachable = addressable(jac_t), grad_reachable = addressable(grad);
  const auto with = [&](auto zero) {
    run<decltype(zero)>(jac_t_reachable, grad_reachable, g, algorithm, chunk, levels, adjoint,
                        launch);
  };
  switch (jac_t.scalar_type()) {
    case ScalarType::Float:
      with(float{});
      break;
    case ScalarType::Double:
      with(double{});
      break;
    case ScalarType::Half:
      with(torch::headeronly::Half{});
      break;
    case ScalarType::BFloat16:
      with(torch::headeronly::BFloat16{});
      break;
    default:
      STD_TORCH_CHECK(false, "reverse_scan: dtype must be float32, float64, bfloat16 or float16");
  }
  return g;
}

}  // namespace

// For the recurrent chains too.
BPPSA_DENSE_TREE_INSTANCE(, float)
BPPSA_DENSE_TREE_INSTANCE(, double)

}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("reverse_scan", TORCH_BOX(&bppsa::cuda::reverse_scan));
}
