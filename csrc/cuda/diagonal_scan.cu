// bppsa::diagonal_scan on CUDA: checks, types and strides; the kernels are in diagonal.cuh.
//
//   decay (T, B, H), grad (T+1, B, H), any strides, one dtype; returns g (T+1, B, H), contiguous:
//     g[T] = grad[T],  g[i] = decay[i] g[i+1] + grad[i]                       (adjoint false)
//     g[0] = grad[0],  g[i+1] = decay[i] g[i] + grad[i+1]                     (adjoint true)
//
// The schema is in the CPU library; this one only adds the implementation.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <string>
#include <vector>

#include "diagonal.cuh"

namespace bppsa::cuda {
namespace {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void check_arguments(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels) {
  STD_TORCH_CHECK(decay.dim() == 3 && grad.dim() == 3,
                  "diagonal_scan: decay must be (T, B, H) and grad (T+1, B, H), found ",
                  decay.dim(), " and ", grad.dim(), " dimensions");
  const int64_t T = decay.size(0), B = decay.size(1), H = decay.size(2);
  STD_TORCH_CHECK(grad.size(0) == T + 1 && grad.size(1) == B && grad.size(2) == H,
                  "diagonal_scan: grad must be (", T + 1, ", ", B, ", ", H,
                  ") for this decay, found (", grad.size(0), ", ", grad.size(1), ", ", grad.size(2),
                  ")");
  STD_TORCH_CHECK(grad.scalar_type() == decay.scalar_type(),
                  "diagonal_scan: decay and grad must have one dtype");
  STD_TORCH_CHECK(
      decay.is_cuda() && grad.is_cuda() && decay.get_device_index() == grad.get_device_index(),
      "diagonal_scan: decay and grad must be on one CUDA device");
  STD_TORCH_CHECK(
      algorithm == "linear" || (algorithm == "chunked" && chunk >= 1) ||
          (algorithm == "blelloch" && levels >= 0 && levels < 63),
      "diagonal_scan: algorithm must be linear, chunked with chunk >= 1 or blelloch with "
      "levels in 0 … ceil(log2(T)), found ",
      algorithm, " with chunk ", chunk, " and levels ", levels);
}

template <typename scalar_t>
Elements<const scalar_t> elements(const Tensor& tensor) {
  return {static_cast<const scalar_t*>(tensor.const_data_ptr()), tensor.stride(0), tensor.stride(1),
          tensor.stride(2)};
}

Tensor diagonal_scan(const Tensor& decay, const Tensor& grad, const std::string& algorithm,
                     int64_t chunk, int64_t levels, bool adjoint) {
  check_arguments(decay, grad, algorithm, chunk, levels);
  Launcher launch(decay);
  const int64_t T = decay.size(0), B = decay.size(1), H = decay.size(2);
  const std::vector<int64_t> size{T + 1, B, H};
  Tensor g = torch::stable::new_empty(grad, size);
  const auto with = [&](auto zero) {
    using scalar_t = decltype(zero);
    const Elements<scalar_t> out{static_cast<scalar_t*>(g.mutable_data_ptr()), B * H, H, 1};
    const DiagonalChain<scalar_t> chain{
        elements<scalar_t>(decay), elements<scalar_t>(grad), out, T, H, 0, B * H};
    scan_diagonal(chain, adjoint, algorithm, chunk, levels, launch);
  };
  switch (decay.scalar_type()) {
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
      STD_TORCH_CHECK(false, "diagonal_scan: dtype must be float32, float64, bfloat16 or float16");
  }
  return g;
}

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("diagonal_scan", TORCH_BOX(&bppsa::cuda::diagonal_scan));
}
