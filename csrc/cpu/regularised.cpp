// A recurrent layer with layer normalisation, recurrent dropout or zoneout, on the CPU.
#include "../operators/regularised.h"

#include "crew.h"
#include "large_results.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

struct Device {
  static constexpr bool kTakesInput = true;

  static Tensor empty(const Tensor& like, Sizes size) { return empty_of_steps(like, size); }

  static void run(const RegularisedForwardRequest& request, const Tensor&) {
    kernels().regularised_forward(request, parallel_for(request, 1));
  }
  static void run(const RegularisedBackwardRequest& request, const Tensor&) {
    kernels().regularised_backward(request, parallel_for(request, 2));
  }

 private:
  static Parallel parallel_for(const RegularisedRequest& request, int64_t products) {
    const int64_t GH = row_of(request.cell).gates * request.H;
    const int64_t of_a_sum = request.diagonal ? 8 : request.H;
    const int64_t of_input = request.w_ih ? request.I : 0;
    return parallel_for_work(request.T * request.B * GH * (of_a_sum + of_input) * products, true);
  }
};

}  // namespace
}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("regularised", TORCH_BOX(&bppsa::regularised<bppsa::cpu::Device>));
  m.impl("regularised_backward", TORCH_BOX(&bppsa::regularised_backward<bppsa::cpu::Device>));
}
