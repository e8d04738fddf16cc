// What the operators make of torch's tensors: memory, checks, plans.
//
// An operator checks its arguments, makes the plain struct that a kernel reads (csrc/requests/) and
// the tensors that it fills, and is written once: where devices differ, it asks its template
// argument Device.
//
// Python's checks have said the same in more words. Shapes, dtypes and layouts are always checked.
// What a pattern holds is checked where a plan is made of it, once; where it is used, step by step,
// it is trusted: to look at it would cost what the kernel costs, and on a GPU the host would have
// to wait. BPPSA_CHECK_PATTERNS=1 in the environment looks all the same, on the CPU.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../requests/plan.h"

namespace bppsa {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;
using Maybe = std::optional<Tensor>;
using Sizes = std::initializer_list<int64_t>;
using Ints = std::vector<int64_t>;

// --- results -------------------------------------------------------------------------------------

// A contiguous tensor on t's device, of t's dtype or another.
inline Tensor empty_beside(const Tensor& t, Sizes size, std::optional<ScalarType> dtype = {}) {
  return torch::stable::new_empty(t, torch::headeronly::IntHeaderOnlyArrayRef(size), dtype);
}

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

// A tensor beside `like` for a result; `at` will point to it, and says its dtype: like's for void.
template <typename T>
Tensor result(T*& at, const Tensor& like, Sizes size) {
  std::optional<ScalarType> dtype;
  if constexpr (!std::is_void_v<T>)
    dtype = sizeof(T) == 8 ? ScalarType::Long : sizeof(T) == 4 ? ScalarType::Int : ScalarType::Byte;
  const Tensor t = empty_beside(like, size, dtype);
  at = data<T>(t);
  return t;
}

// The memory of a result; null for one of size 0, which is not wanted.
inline void* result_data(const Tensor& t) { return t.numel() ? t.data_ptr() : nullptr; }

// --- arguments -----------------------------------------------------------------------------------

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

inline Storage real_storage(const Tensor& t, const char* name) {
  const Storage storage = storage_of(t);
  STD_TORCH_CHECK(storage == Storage::f32 || storage == Storage::f64, name,
                  ": wanted float32 or float64");
  return storage;
}

// Calls body(T{}) for the numbers of a tensor, float or double.
template <class Body>
void with_numbers_of(const Tensor& t, const Body& body) {
  if (storage_of(t) == Storage::f64)
    body(double{});
  else
    body(float{});
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  if (a.is_cpu() || b.is_cpu()) return a.is_cpu() && b.is_cpu();
  return a.is_cuda() && b.is_cuda() && a.get_device_index() == b.get_device_index();
}

// Whether a tensor is of this size, and of the dtype and device of `like`.
inline bool agrees(const Tensor& t, const Tensor& like, Sizes size) {
  bool same = t.dim() == int64_t(size.size()) && t.scalar_type() == like.scalar_type() &&
              same_device(t, like);
  int64_t d = 0;
  for (int64_t n : size) same = same && t.size(d++) == n;
  return same;
}

// The memory of an argument that a kernel reads as contiguous numbers of `like`'s dtype; null if
// there is none.
inline void* operand(const Maybe& t, const char* name, const Tensor& like, Sizes size) {
  if (!t.has_value()) return nullptr;
  STD_TORCH_CHECK(agrees(*t, like, size) && t->is_contiguous(), name,
                  ": wanted another shape, dtype or device, contiguous");
  return t->data_ptr();
}

// The memory of a contiguous tensor of `size` 32-bit indices, on the device of `like`.
inline const int32_t* indices(const Tensor& t, const char* name, int64_t size, const Tensor& like) {
  STD_TORCH_CHECK(t.scalar_type() == ScalarType::Int && t.is_contiguous() && same_device(t, like) &&
                      t.numel() == size,
                  name, ": wanted ", size, " contiguous int32 on the device of the others, found ",
                  t.numel(), " of another layout, dtype or device");
  return data<int32_t>(t);
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

// Where a recurrence over the first dimension begins: at its last step if it runs the other way.
// Its stride is then negative.
inline char* first_step(const Tensor& t, bool reverse) {
  const int64_t last = reverse && t.size(0) > 0 ? t.size(0) - 1 : 0;
  return data<char>(t) + last * t.stride(0) * bytes_of(storage_of(t));
}
inline int64_t direction(bool reverse) { return reverse ? -1 : 1; }

template <int N>
void set_strides(int64_t (&stride)[N], const Tensor& t, bool reverse = false) {
  for (int d = 0; d < N; ++d) stride[d] = t.stride(d);
  stride[0] *= direction(reverse);
}

// --- how to work ---------------------------------------------------------------------------------

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

}  // namespace bppsa
