#pragma once
// What all drivers share. A driver is a plain C function over host memory that runs kernels of
// csrc/cuda through the emulator: what the emulator's tests call. Not part of any library that is
// installed.

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>

#include "../../cpu/kernels.h"
#include "../../cuda/launcher.cuh"

namespace bppsa::cuda {

// The end of every request: the device to emulate, and what it answers. Mirrored by ctypes in
// tests/support/emulation.py.
struct Device {
  int64_t seed, shared_limit, processors, scratch_limit, grid_limit;
  int64_t untrusted;  // answered: reports of products that were not trusted
  char answer[4096];  // the names of the kernels launched, one a line; or the error
};

/// Calls run(launcher) on the device; not 0 if that failed.
template <class Run>
int on(Device& device, const Run& run) {
  Launcher launch;
  launch.shared_limit = device.shared_limit;
  launch.processors = static_cast<int>(device.processors);
  launch.scratch_limit = device.scratch_limit;
  launch.grid_limit = device.grid_limit;
  emulator::Device::get().seed = static_cast<unsigned>(device.seed);
  emulator::Device::get().untrusted = 0;
  std::string answer;
  int failed = 0;
  try {
    run(launch);
    for (const std::string& name : launch.launches) answer += name + "\n";
  } catch (const std::exception& error) {
    answer = error.what();
    failed = 1;
  }
  device.untrusted = emulator::Device::get().untrusted;
  std::snprintf(device.answer, sizeof(device.answer), "%s", answer.c_str());
  return failed;
}

/// Calls run with a zero of the dtype of that name.
template <class Run>
void with_dtype(const std::string& dtype, const Run& run) {
  if (dtype == "float32") return run(float{});
  if (dtype == "float64") return run(double{});
  if (dtype == "bfloat16") return run(torch::headeronly::BFloat16{});
  if (dtype == "float16") return run(torch::headeronly::Half{});
  throw std::runtime_error("unknown dtype " + dtype);
}

inline Plan plan_of(const std::string& algorithm, int64_t chunk, int64_t levels) {
  if (algorithm == "linear") return {Algorithm::linear, 0, 0};
  if (algorithm == "chunked") return {Algorithm::chunked, chunk, 0};
  if (algorithm == "blelloch") return {Algorithm::blelloch, 0, levels};
  throw std::runtime_error("unknown algorithm " + algorithm);
}

}  // namespace bppsa::cuda
