// The recurrent layers. The dense tree that they share is compiled in.

#include <stdexcept>

#include "../../cuda/dense/scan.cuh"
#include "../../cuda/recurrent/layer.cuh"
#include "../../cuda/recurrent/windows_met.cuh"
#include "driver.h"
// After what makes this compiler take device code.
#include "../../cells/formulas.h"

using namespace bppsa;

// Mirrored by ctypes in the tests, as the requests are.
struct MetRequest {
  Storage storage;
  int64_t windows, B, N;
  const void *begun, *right, *level;  // level null: of gradients
  double size;                        // their roundings
  int64_t first;
  int32_t* met;
};

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

/// Which windows have met, in one part of their state (windows, B, N): by levels, or, of
/// gradients without any, by roundings.
extern "C" int emulate_met(const MetRequest* request, cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    const auto with = [&](auto zero) {
      using Real = decltype(zero);
      const auto& [storage, K, B, N, begun, right, level, size, first, met] = *request;
      const Real *const is = cuda::in<Real>(begun), *const was = cuda::in<Real>(right);
      if (level) {
        const StatesNear<Real> near{cuda::in<Real>(level), static_cast<Real>(size)};
        cuda::states_met(is, was, K, B, static_cast<int>(N), near, first != 0, met, launch);
      } else {
        cuda::gradients_met(is, was, K, B, static_cast<int>(N), static_cast<Real>(size), first != 0,
                            met, launch);
      }
    };
    request->storage == Storage::f64 ? with(double{}) : with(float{});
  });
}
