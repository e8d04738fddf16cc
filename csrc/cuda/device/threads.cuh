#pragma once
// Work in which every thread has a number of its own: which numbers, and how many threads.

#include "launcher.cuh"
#include "numbers.cuh"

namespace bppsa::cuda {

constexpr int kThreadsOfBlock = 128;  // at most

/// Calls run(n) for n in [0, tasks), one thread each, over all blocks.
template <class Run>
BPPSA_DEVICE void for_each_thread(int64_t tasks, const Run& run) {
  const int64_t all = int64_t{gridDim.x} * blockDim.x;
  for (int64_t n = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; n < tasks; n += all) run(n);
}

/// Launches a thread for each of `tasks`, in small blocks where large ones would leave
/// multiprocessors idle.
template <typename... Parameters, typename... Arguments>
void launch_threads(Launcher& launch, const char* name, void (*kernel)(Parameters...),
                    int64_t tasks, const Arguments&... arguments) {
  const bool few = tasks < int64_t{launch.processors} * kThreadsOfBlock;
  const int threads = few ? 32 : kThreadsOfBlock;
  launch(name, kernel, ceil_div<int64_t>(tasks, threads), threads, 0, arguments...);
}

}  // namespace bppsa::cuda
