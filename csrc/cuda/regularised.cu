// bppsa::regularised and its backward on CUDA; the kernels are in recurrent/regularised.cuh.

#include "../operators/regularised.h"
#include "recurrent/regularised.cuh"

namespace bppsa::cuda {
namespace {

struct Device {
  static constexpr bool kTakesInput = false;

  static Tensor empty(const Tensor& like, Sizes size) { return empty_beside(like, size); }

  static void run(const RegularisedForwardRequest& request, const Tensor& like) {
    Launcher launch(like);
    with_regularised(request, [&](auto cell, auto normalised, auto zero) {
      regularised_forward<decltype(cell), decltype(normalised)::value, decltype(zero)>(request,
                                                                                       launch);
    });
  }
  static void run(const RegularisedBackwardRequest& request, const Tensor& like) {
    Launcher launch(like);
    with_regularised(request, [&](auto cell, auto normalised, auto zero) {
      regularised_backward<decltype(cell), decltype(normalised)::value, decltype(zero)>(request,
                                                                                        launch);
    });
  }
};

}  // namespace
}  // namespace bppsa::cuda

STABLE_TORCH_LIBRARY_IMPL(bppsa, CUDA, m) {
  m.impl("regularised", TORCH_BOX(&bppsa::regularised<bppsa::cuda::Device>));
  m.impl("regularised_backward", TORCH_BOX(&bppsa::regularised_backward<bppsa::cuda::Device>));
}
