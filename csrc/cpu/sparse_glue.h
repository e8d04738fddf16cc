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

// A contiguous tensor of `size` 32-bit indices.
inline const int32_t* indices(const Tensor& t, const char* name, int64_t size) {
  STD_TORCH_CHECK(
      t.scalar_type() == ScalarType::Int && t.is_contiguous() && t.is_cpu() && t.numel() == size,
      name, ": wanted ", size, " contiguous int32 on the CPU, found ", t.numel(),
      " of another layout, dtype or device");
  return static_cast<const int32_t*>(t.data_ptr());
}

inline Storage values_storage(const Tensor& t, const char* name) {
  const Storage storage = storage_of(t);
  STD_TORCH_CHECK(storage == Storage::f32 || storage == Storage::f64, name,
                  ": wanted float32 or float64");
  return storage;
}

}  // namespace bppsa
