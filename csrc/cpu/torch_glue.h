// From torch's stable ABI to the plain structs of kernels.h.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <string>

#include "kernels.h"

namespace bppsa {

using torch::stable::Tensor;

inline Storage storage_of(const Tensor& t) {
  using torch::headeronly::ScalarType;
  switch (t.scalar_type()) {
    case ScalarType::Float:
      return Storage::f32;
    case ScalarType::Double:
      return Storage::f64;
    case ScalarType::BFloat16:
      return Storage::bf16;
    case ScalarType::Half:
      return Storage::f16;
    default:
      STD_TORCH_CHECK(false, "dtype: wanted float32, float64, bfloat16 or float16");
  }
}

inline Plan plan_of(const std::string& algorithm, int64_t chunk, int64_t levels) {
  if (algorithm == "linear") return {Algorithm::linear, 0, 0};
  if (algorithm == "chunked") {
    STD_TORCH_CHECK(chunk >= 1, "chunk: found ", chunk, ", wanted at least 1");
    return {Algorithm::chunked, chunk, 0};
  }
  STD_TORCH_CHECK(algorithm == "blelloch", "algorithm: found '", algorithm,
                  "', wanted 'linear', 'chunked' or 'blelloch'");
  STD_TORCH_CHECK(levels >= 0 && levels <= 62, "levels: found ", levels, ", wanted 0 to 62");
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

inline const void* data_or_null(const std::optional<Tensor>& t) {
  return t.has_value() ? t->data_ptr() : nullptr;
}

// A contiguous tensor of t's dtype and device.
inline Tensor empty_beside(const Tensor& t, std::initializer_list<int64_t> size) {
  return torch::stable::new_empty(t, torch::headeronly::IntHeaderOnlyArrayRef(size));
}

// What a kernel will read as contiguous memory of `like`'s dtype must be that; Python's checks
// say the same with more words.
inline void check_operand(const Tensor& t, const char* name, const Tensor& like,
                          std::initializer_list<int64_t> size) {
  bool same = t.dim() == int64_t(size.size()) && t.is_contiguous() &&
              t.scalar_type() == like.scalar_type() && t.is_cpu();
  int64_t d = 0;
  for (int64_t n : size) same = same && t.size(d++) == n;
  STD_TORCH_CHECK(same, name, ": wanted another shape, dtype or device, contiguous");
}

inline void check_operand(const std::optional<Tensor>& t, const char* name, const Tensor& like,
                          std::initializer_list<int64_t> size) {
  if (t.has_value()) check_operand(*t, name, like, size);
}

}  // namespace bppsa
