// The scans of this directory as a plain C function over host memory, through the emulator: what
// tests/test_cuda_emulation.py calls. Not part of any library that is installed.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdio>
#include <exception>

#include "scan.cuh"

namespace bppsa::cuda {
namespace {

// Mirrored by ctypes in the test.
struct Request {
  const void* jac_t;
  const void* grad;
  void* out;
  int64_t jac_strides[4], grad_strides[3];
  int64_t T, B, H;
  const char* dtype;
  const char* algorithm;
  int64_t chunk, levels;
  int64_t adjoint, seed;
  int64_t shared_limit, processors, scratch_limit, grid_limit;
  int64_t untrusted;    // answer: reports of products that were not trusted
  char launches[4096];  // answer: the names of the kernels launched, one a line; or the error
};

template <typename scalar_t>
void run(const Request& request, Launcher& launch) {
  const int64_t* js = request.jac_strides;
  const int64_t* gs = request.grad_strides;
  const int64_t B = request.B, H = request.H;
  const DenseCell<scalar_t> cell{static_cast<const scalar_t*>(request.jac_t), js[0], js[1],
                                 static_cast<int>(js[2]), static_cast<int>(js[3])};
  const Vectors<const scalar_t> grad{static_cast<const scalar_t*>(request.grad), gs[0], gs[1],
                                     static_cast<int>(gs[2])};
  const Vectors<scalar_t> out{static_cast<scalar_t*>(request.out), B * H, H, 1};
  scan_dense(cell, grad, out, request.T, B, H, request.adjoint != 0, request.algorithm,
             request.chunk, request.levels, launch);
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

extern "C" int emulate(bppsa::cuda::Request* request) {
  bppsa::cuda::Launcher launch;
  launch.shared_limit = request->shared_limit;
  launch.processors = static_cast<int>(request->processors);
  launch.scratch_limit = request->scratch_limit;
  launch.grid_limit = request->grid_limit;
  bppsa::emulator::Device::get().seed = static_cast<unsigned>(request->seed);
  bppsa::emulator::Device::get().untrusted = 0;
  std::string answer;
  int failed = 0;
  try {
    bppsa::cuda::run(*request, launch);
    for (const std::string& name : launch.launches) answer += name + "\n";
  } catch (const std::exception& error) {
    answer = error.what();
    failed = 1;
  }
  request->untrusted = bppsa::emulator::Device::get().untrusted;
  std::snprintf(request->launches, sizeof(request->launches), "%s", answer.c_str());
  return failed;
}
