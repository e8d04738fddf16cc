// What the operators on sparse matrices share: 32-bit indices, and values that are float32 or
// float64.
#pragma once

#include "../jacobians/kernels.h"
#include "torch_glue.h"

namespace bppsa {

using torch::headeronly::ScalarType;

inline Tensor empty_of(const Tensor& beside, std::initializer_list<int64_t> size,
                       ScalarType dtype) {
  return torch::stable::new_empty(beside, torch::headeronly::IntHeaderOnlyArrayRef(size), dtype);
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  if (a.is_cpu() || b.is_cpu()) return a.is_cpu() && b.is_cpu();
  return a.is_cuda() && b.is_cuda() && a.get_device_index() == b.get_device_index();
}

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
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

}  // namespace bppsa
