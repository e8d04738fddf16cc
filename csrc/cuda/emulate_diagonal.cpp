// The diagonal scans of this directory as a plain C function over host memory, through the
// emulator: what tests/test_diagonal_scan.py calls. Not part of any library that is installed.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdio>
#include <exception>

#include "diagonal.cuh"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in the test.
struct Request {
  const void* decay;
  const void* grad;
  void* out;
  int64_t decay_strides[3], grad_strides[3];
  int64_t T, B, H;
  const char* dtype;
  const char* algorithm;
  int64_t chunk, levels, adjoint;
  int64_t processors, scratch_limit, grid_limit;
  int64_t untrusted;  // answer: reports of products that were not trusted
  char error[512];    // answer: empty if all went well
};

template <typename scalar_t>
Elements<const scalar_t> elements(const void* data, const int64_t* strides) {
  return {static_cast<const scalar_t*>(data), strides[0], strides[1], strides[2]};
}

template <typename scalar_t>
void run(const Request& request, Launcher& launch) {
  const int64_t T = request.T, B = request.B, H = request.H;
  const DiagonalChain<scalar_t> chain{elements<scalar_t>(request.decay, request.decay_strides),
                                      elements<scalar_t>(request.grad, request.grad_strides),
                                      {static_cast<scalar_t*>(request.out), B * H, H, 1},
                                      T,
                                      H,
                                      0,
                                      B * H};
  scan_diagonal(chain, request.adjoint != 0, request.algorithm, request.chunk, request.levels,
                launch);
}

void run(const Request& request, Launcher& launch) {
  const std::string dtype = request.dtype;
  if (dtype == "float32") return run<float>(request, launch);
  if (dtype == "float64") return run<double>(request, launch);
  if (dtype == "bfloat16") return run<torch::headeronly::BFloat16>(request, launch);
  if (dtype == "float16") return run<torch::headeronly::Half>(request, launch);
  throw std::runtime_error("unknown dtype " + dtype);
}

}  // namespace
}  // namespace bppsa::cuda

extern "C" void emulate(bppsa::cuda::Request* request) {
  bppsa::cuda::Launcher launch;
  launch.processors = static_cast<int>(request->processors);
  launch.scratch_limit = request->scratch_limit;
  launch.grid_limit = request->grid_limit;
  bppsa::emulator::Device::get().untrusted = 0;
  request->error[0] = '\0';
  try {
    bppsa::cuda::run(*request, launch);
  } catch (const std::exception& error) {
    std::snprintf(request->error, sizeof(request->error), "%s", error.what());
  }
  request->untrusted = bppsa::emulator::Device::get().untrusted;
}
