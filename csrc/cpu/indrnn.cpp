// An independently recurrent layer in one direction, on the CPU.
#include "../operators/indrnn.h"

#include "crew.h"
#include "large_results.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

struct Device {
  static Tensor empty(const Tensor& like, Sizes size) { return empty_of_steps(like, size); }

  static void run(const IndRnnForwardRequest& request, const Tensor&) {
    kernels().indrnn_forward(request, parallel_for(request));
  }
  static void run(const IndRnnBackwardRequest& request, const Tensor&) {
    kernels().indrnn_backward(request, parallel_for(request));
  }

 private:
  // As much work as a few multiply-adds a unit and step, most of it memory.
  static Parallel parallel_for(const IndRnnRequest& request) {
    return parallel_for_work(request.T * request.B * request.H * 8, true);
  }
};

}  // namespace
}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("indrnn", TORCH_BOX(&bppsa::indrnn<bppsa::cpu::Device>));
  m.impl("indrnn_backward", TORCH_BOX(&bppsa::indrnn_backward<bppsa::cpu::Device>));
}
