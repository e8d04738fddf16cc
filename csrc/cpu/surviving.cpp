// bppsa::take_surviving and bppsa::put_surviving on the CPU: between a dense weight and the values
// of its surviving entries. `index` ascends.
#include <algorithm>

#include "torch_glue.h"

namespace bppsa {

static const int64_t* index_of(const Tensor& index) {
  STD_TORCH_CHECK(index.dim() == 1 && index.is_contiguous() && index.is_cpu() &&
                      index.scalar_type() == torch::headeronly::ScalarType::Long,
                  "index: wanted one dimension of int64, contiguous, on the CPU");
  return static_cast<const int64_t*>(index.data_ptr());
}

// Calls body(pointer) with the tensor's memory as numbers of its size.
template <class Body>
static void with_numbers(const Tensor& t, const Body& body) {
  if (storage_of(t) == Storage::f64) return body(static_cast<uint64_t*>(t.data_ptr()));
  STD_TORCH_CHECK(storage_of(t) == Storage::f32, "weight: wanted float32 or float64");
  body(static_cast<uint32_t*>(t.data_ptr()));
}

static constexpr int64_t kGrain = 1 << 14;

Tensor take_surviving_cpu(const Tensor& weight, const Tensor& index) {
  STD_TORCH_CHECK(weight.is_contiguous(), "weight: wanted contiguous");
  const int64_t* at = index_of(index);
  const int64_t n = index.numel();
  STD_TORCH_CHECK(n == 0 || (at[0] >= 0 && at[n - 1] < weight.numel()), "index: beyond the weight");
  Tensor values = empty_beside(weight, {n});
  with_numbers(weight, [&](auto* from) {
    auto* to = static_cast<decltype(from)>(values.data_ptr());
    torch::stable::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t e = begin; e < end; ++e) to[e] = from[at[e]];
    });
  });
  return values;
}

// A block is cleared and filled while it is in the first-level cache.
Tensor put_surviving_cpu(const Tensor& values, const Tensor& index, int64_t size) {
  const int64_t* at = index_of(index);
  const int64_t n = index.numel();
  check_operand(values, "values", values, {n});
  STD_TORCH_CHECK(n == 0 || (at[0] >= 0 && at[n - 1] < size), "index: beyond the size");
  constexpr int64_t kBlock = 1 << 12;
  Tensor weight = empty_beside(values, {size});
  with_numbers(values, [&](const auto* from) {
    auto* to =
        static_cast<std::remove_const_t<std::remove_pointer_t<decltype(from)>>*>(weight.data_ptr());
    torch::stable::parallel_for(0, size, kGrain, [&](int64_t begin, int64_t end) {
      int64_t e = std::lower_bound(at, at + n, begin) - at;
      for (int64_t i = begin; i < end; i += kBlock) {
        const int64_t last = std::min(i + kBlock, end);
        std::fill(to + i, to + last, 0);
        for (; e < n && at[e] < last; ++e) to[at[e]] = from[e];
      }
    });
  });
  return weight;
}

}  // namespace bppsa

STABLE_TORCH_LIBRARY_FRAGMENT(bppsa, m) {
  m.def("take_surviving(Tensor weight, Tensor index) -> Tensor");
  m.def("put_surviving(Tensor values, Tensor index, int size) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("take_surviving", TORCH_BOX(&bppsa::take_surviving_cpu));
  m.impl("put_surviving", TORCH_BOX(&bppsa::put_surviving_cpu));
}
