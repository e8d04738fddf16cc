// The recurrent layers. The dense tree that they share is compiled in.

#include <stdexcept>

#include "../../cuda/dense/scan.cuh"
#include "../../cuda/recurrent/layer.cuh"
#include "driver.h"
// After what makes this compiler take device code.
#include "../../cells/formulas.h"

using namespace bppsa;

/// kept_width: answers what a forward that keeps `keep` has to be given.
extern "C" int64_t emulate_kept_width(const RecurrentForwardRequest* request, Keep keep) {
  return cuda::kept_width_of(*request, keep);
}

/// The most units of which a backward runs on the device.
extern "C" int emulate_most_units(const RecurrentForwardRequest* request,
                                  const cuda::Device* device) {
  return cuda::most_units(*request, device->shared_limit);
}

extern "C" int emulate_forward(const RecurrentForwardRequest* request, void* h_n,
                               cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_cell(*request, [&](auto cell) {
      cuda::layer_forward<typename decltype(cell)::type>(*request, h_n, launch);
    });
  });
}

extern "C" int emulate_backward(const RecurrentBackwardRequest* request, const Plan* plan,
                                cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_cell(*request, [&](auto cell) {
      cuda::layer_backward<typename decltype(cell)::type>(*request, *plan, launch);
    });
  });
}
