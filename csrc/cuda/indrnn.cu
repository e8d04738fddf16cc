// bppsa::indrnn and its backward on CUDA; the kernels are in recurrent/independent.cuh.

#include "../operators/indrnn.h"
#include "recurrent/independent.cuh"

namespace bppsa::cuda {
namespace {

struct Device {
  static Tensor empty(const Tensor& like, Sizes size) { return empty_beside(like, size); }

  static void run(const IndRnnForwardRequest& request, const Tensor& like) {
    Launcher launch(like);
    with_independent(request, [&](auto formula, auto zero) {
      independent_forward<decltype(formula), decltype(zero)>(request, launch);
    });
  }
  static void run(const IndRnnBackwardRequest& request, const Tensor& like) {
    Launcher launch(like);
    with_independent(request, [&](auto formula, auto zero) {
      independent_backward<decltype(formula), decltype(zero)>(request, launch);
    });
  }
};

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("indrnn", TORCH_BOX(&bppsa::indrnn<bppsa::cuda::Device>));
  m.impl("indrnn_backward", TORCH_BOX(&bppsa::indrnn_backward<bppsa::cuda::Device>));
}
