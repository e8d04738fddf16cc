// From torch's tensors to the plain structs of requests/: dtypes, memory, checks.
//
// Builders are for every device. Python's checks have said the same in more words. Shapes, dtypes
// and layouts are always checked. What a pattern holds is checked where a plan is made of it, once;
// where it is used, step by step, it is trusted: to look at it would cost what the kernel costs,
// and on a GPU the host would have to wait. BPPSA_CHECK_PATTERNS=1 in the environment looks all the
// same, on the CPU.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <vector>

#include "../plan.h"

namespace bppsa {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Maybe = std::optional<Tensor>;
using Sizes = std::initializer_list<int64_t>;
using Ints = std::vector<int64_t>;

inline Storage storage_of(const Tensor& t) {
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

inline const void* data_or_null(const Maybe& t) { return t.has_value() ? t->data_ptr() : nullptr; }

// A contiguous tensor of t's dtype and device.
inline Tensor empty_beside(const Tensor& t, Sizes size) {
  return torch::stable::new_empty(t, torch::headeronly::IntHeaderOnlyArrayRef(size));
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  if (a.is_cpu() || b.is_cpu()) return a.is_cpu() && b.is_cpu();
  return a.is_cuda() && b.is_cuda() && a.get_device_index() == b.get_device_index();
}

// What a kernel will read as contiguous memory of `like`'s dtype must be that; Python's checks
// say the same with more words.
inline void check_operand(const Tensor& t, const char* name, const Tensor& like, Sizes size) {
  bool same = t.dim() == int64_t(size.size()) && t.is_contiguous() &&
              t.scalar_type() == like.scalar_type() && same_device(t, like);
  int64_t d = 0;
  for (int64_t n : size) same = same && t.size(d++) == n;
  STD_TORCH_CHECK(same, name, ": wanted another shape, dtype or device, contiguous");
}

inline void check_operand(const Maybe& t, const char* name, const Tensor& like, Sizes size) {
  if (t.has_value()) check_operand(*t, name, like, size);
}

inline Tensor empty_of(const Tensor& beside, Sizes size, ScalarType dtype) {
  return torch::stable::new_empty(beside, torch::headeronly::IntHeaderOnlyArrayRef(size), dtype);
}

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

// Whether patterns that are trusted are looked at.
inline bool checks_patterns() {
  static const char* const wanted = std::getenv("BPPSA_CHECK_PATTERNS");
  return wanted && *wanted == '1';
}

// That numbers on the CPU rise, or at least do not fall.
template <typename T>
void check_ascending(const T* numbers, int64_t n, bool strictly, const char* name) {
  for (int64_t i = 1; i < n; ++i)
    STD_TORCH_CHECK(numbers[i - 1] < numbers[i] + !strictly, name, ": found ", numbers[i],
                    " after ", numbers[i - 1], ", wanted ascending numbers");
}

// A contiguous tensor of `size` 32-bit indices, on the device of `like`.
inline const int32_t* indices(const Tensor& t, const char* name, int64_t size, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Int && t.is_contiguous() && same_device(t, like) &&
                      t.numel() == size,
                  name, ": wanted ", size, " contiguous int32 on the device of the others, found ",
                  t.numel(), " of another layout, dtype or device");
  return data<int32_t>(t);
}

inline Storage values_storage(const Tensor& t, const char* name) {
  const Storage storage = storage_of(t);
  STD_TORCH_CHECK(storage == Storage::f32 || storage == Storage::f64, name,
                  ": wanted float32 or float64");
  return storage;
}

// The memory of a result; null for one of size 0, which is not wanted.
inline void* result_data(const Tensor& t) { return t.numel() ? t.data_ptr() : nullptr; }

// A pointer to the last step of a tensor whose first dimension is time, or to the first: where a
// recurrence that runs the other way begins. Its stride is then negative.
inline char* first_step(const Tensor& t, bool reverse) {
  const int64_t last = reverse && t.size(0) > 0 ? t.size(0) - 1 : 0;
  return static_cast<char*>(t.data_ptr()) + last * t.stride(0) * bytes_of(storage_of(t));
}
inline int64_t direction(bool reverse) { return reverse ? -1 : 1; }

// What a kernel is asked for, and the tensor that it fills.
template <class Request>
struct Asked {
  Request request;
  Tensor result;
};

}  // namespace bppsa
