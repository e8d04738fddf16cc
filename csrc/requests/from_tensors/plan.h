// The plan and the threads of a call.
#pragma once

#include <algorithm>
#include <string>

#include "tensors.h"

namespace bppsa {

inline Plan plan_of(const std::string& algorithm, int64_t chunk, int64_t levels) {
  if (algorithm == "linear") return {Algorithm::linear, 0, 0};
  if (algorithm == "chunked") {
    STD_TORCH_CHECK(chunk >= 1, "chunk: found ", chunk, ", wanted at least 1");
    return {Algorithm::chunked, chunk, 0};
  }
  STD_TORCH_CHECK(algorithm == "blelloch", "algorithm: found '", algorithm,
                  "', wanted 'linear', 'chunked' or 'blelloch'");
  STD_TORCH_CHECK(levels >= 0 && levels <= kMaxLevels, "levels: found ", levels, ", wanted 0 to ",
                  kMaxLevels);
  return {Algorithm::blelloch, 0, levels};
}

// Torch's threads, or one alone where waking them costs more than they would save.
inline Parallel parallel_for_work(int64_t multiply_adds, bool flush_denormals = false) {
  constexpr int64_t kWorthThreads = 1 << 15;
  const int threads =
      multiply_adds < kWorthThreads ? 1 : static_cast<int>(torch::stable::get_num_threads());
  return {threads, flush_denormals,
          [](int64_t n, void* context, void (*body)(void*, int64_t, int64_t)) {
            torch::stable::parallel_for(
                0, n, 1, [&](int64_t begin, int64_t end) { body(context, begin, end); });
          }};
}

}  // namespace bppsa
