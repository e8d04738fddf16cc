// Layers with layer normalisation, recurrent dropout or zoneout.

#include "../../cuda/recurrent/regularised.cuh"

#include "driver.h"

using namespace bppsa;

extern "C" int emulate_forward(const RegularisedForwardRequest* request, cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_regularised(*request, [&](auto cell, auto normalised, auto zero) {
      cuda::regularised_forward<decltype(cell), decltype(normalised)::value, decltype(zero)>(
          *request, launch);
    });
  });
}

extern "C" int emulate_backward(const RegularisedBackwardRequest* request, cuda::Device* device) {
  return cuda::on(*device, [&](cuda::Launcher& launch) {
    cuda::with_regularised(*request, [&](auto cell, auto normalised, auto zero) {
      cuda::regularised_backward<decltype(cell), decltype(normalised)::value, decltype(zero)>(
          *request, launch);
    });
  });
}
