// The recurrent layers. The dense tree that they share is compiled in.

#include <stdexcept>

#include "../../cuda/dense/scan.cuh"
#include "../../cuda/recurrent/layer.cuh"
#include "driver.h"

using namespace bppsa;

/// kept_width: answers what a forward that keeps `keep` has to be given.
extern "C" int64_t emulate_kept_width(const RecurrentForwardRequest* request, Keep keep) {
  return cuda::kept_width_of(*request, keep);
}

/// The most units of which a backward runs on the device.
extern "C" int emulate_most_units(const RecurrentForwardRequest* request,
                                  const cuda::Device* device) {
  int most = 0;
  cuda::with_cell(*request, [&](auto zero) {
    using Cell = decltype(zero);
    most = cuda::most_units<typename Cell::scalar_t>(Cell::kGates, device->shared_limit);
  });
  return most;
}

extern "C" int emulate_forward(const RecurrentForwardRequest* request, void* h_n,
                               cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_cell(*request,
                    [&](auto zero) { cuda::layer_forward<decltype(zero)>(*request, h_n, launch); });
  });
}

extern "C" int emulate_backward(const RecurrentBackwardRequest* request, const Plan* plan,
                                cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_cell(*request, [&](auto zero) {
      cuda::layer_backward<decltype(zero)>(*request, *plan, launch);
    });
  });
}
