// The independently recurrent layer.

#include "../../cuda/recurrent/independent.cuh"
#include "driver.h"

using namespace bppsa;

extern "C" int emulate_forward(const IndRnnForwardRequest* request, cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_independent(*request, [&](auto formula, auto zero) {
      cuda::independent_forward<decltype(formula), decltype(zero)>(*request, launch);
    });
  });
}

extern "C" int emulate_backward(const IndRnnBackwardRequest* request, cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_independent(*request, [&](auto formula, auto zero) {
      cuda::independent_backward<decltype(formula), decltype(zero)>(*request, launch);
    });
  });
}
