#pragma once
// What all drivers share. A driver is a plain C function over host memory that runs kernels of
// csrc/cuda through the emulator: what the emulator's tests call. It takes a request as the
// operators do (csrc/requests/). Not part of any library that is installed.

#include <cstdio>
#include <exception>
#include <string>

#include "../../cuda/device/launcher.cuh"
#include "../../requests/plan.h"

namespace bppsa::cuda {

// The device to emulate, and what it answers. Mirrored by ctypes in the tests.
struct Device {
  int64_t seed, shared_limit, processors, scratch_limit, grid_limit;
  int64_t untrusted;  // answered: reports of products that were not trusted
  int64_t barriers;   // answered: times that threads waited for each other
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
  emulator::Device::get().untrusted = emulator::Device::get().barriers = 0;
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
  device.barriers = emulator::Device::get().barriers;
  std::snprintf(device.answer, sizeof(device.answer), "%s", answer.c_str());
  return failed;
}

}  // namespace bppsa::cuda
