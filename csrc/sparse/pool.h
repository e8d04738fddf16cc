// What may follow a sparse layer in the same pass, and its backward: ReLU, and the maximum of
// windows of 2 x 2 pixels.
//
// The layer's own output, four times as large as the pooled one, is never in memory. The forward
// keeps a byte a window: the number of the pixel that it took (0 to 3 in reading order, the first
// of equal ones, a NaN before all, as in PyTorch), or kNone where the ReLU made it 0. The backward
// knows the gradient of each of the four pixels from that byte.
#pragma once

#include "../requests/sparse.h"
#include "../simd/vec.h"

namespace bppsa::BPPSA_ISA {

constexpr int kNone = 4;

template <typename T, int W>
using Places = Vec<typename IntOf<T>::type, W>;

template <typename T, int W>
BPPSA_INLINE Places<T, W> load_places(const uint8_t* p) {
  Vec<uint8_t, W> bytes;
  std::memcpy(&bytes, p, W);
  return __builtin_convertvector(bytes, Places<T, W>);
}

template <typename T, int W>
BPPSA_INLINE void store_places(uint8_t* p, Places<T, W> places) {
  const auto bytes = __builtin_convertvector(places, Vec<uint8_t, W>);
  std::memcpy(p, &bytes, W);
}

// NaN stays.
template <typename T, int W>
BPPSA_INLINE Vec<T, W> relu(Vec<T, W> v) {
  return v <= 0 ? Vec<T, W>{} : v;
}

template <typename T, int W>
struct Pooled {
  Vec<T, W> value;
  Places<T, W> place;
};

template <typename T, int W>
BPPSA_INLINE Pooled<T, W> pool(const Vec<T, W> (&pixel)[4], bool with_relu) {
  Pooled<T, W> best{pixel[0], Places<T, W>{}};
  for (int k = 1; k < 4; ++k) {
    const auto better = pixel[k] > best.value || pixel[k] != pixel[k];
    best.value = better ? pixel[k] : best.value;
    best.place = better ? Places<T, W>{} + k : best.place;
  }
  if (with_relu) {
    best.place = best.value <= 0 ? Places<T, W>{} + kNone : best.place;
    best.value = relu<T, W>(best.value);
  }
  return best;
}

// The gradient of the layer's own output, from that of the result. All three operands lie
// (channels, result rows, result columns, samples).
template <typename T>
struct ResultGradient {
  const T* grad;
  const T* output;        // or null: no ReLU
  const uint8_t* places;  // or null: no pooling

  ResultGradient(const SparseBackwardRequest& request, const T* grad)
      : grad(grad), output(static_cast<const T*>(request.output)), places(request.places) {}

  // Of a window's pixel k, of the windows at `offset` onwards.
  template <int W>
  BPPSA_INLINE Vec<T, W> pixel(int64_t offset, int k) const {
    const auto g = load<T, W>(grad + offset);
    return load_places<T, W>(places + offset) == k ? g : Vec<T, W>{};
  }

  // Without a pooling.
  template <int W>
  BPPSA_INLINE Vec<T, W> at(int64_t offset) const {
    const auto g = load<T, W>(grad + offset);
    if (!output) return g;
    return load<T, W>(output + offset) <= 0 ? Vec<T, W>{} : g;
  }

  // Row y of an image of `columns` pixels, `samples` each, its channel's result at `offset`.
  void expand_row(int64_t offset, int64_t y, int64_t rows, int64_t columns, int64_t samples,
                  T* to) const {
    if (!places) {
      const int64_t first = offset + y * columns * samples;
      return for_each_vector<T>(columns * samples, [&]<int W>(int64_t i, Constant<W>) {
        store<T, W>(to + i, at<W>(first + i));
      });
    }
    const int64_t windows = y / 2 < rows / 2 ? columns / 2 : 0;
    const int64_t first = offset + y / 2 * (columns / 2) * samples;
    for (int64_t q = 0; q < windows; ++q)
      for (int k = y % 2 * 2; k < y % 2 * 2 + 2; ++k, to += samples)
        for_each_vector<T>(samples, [&]<int W>(int64_t i, Constant<W>) {
          store<T, W>(to + i, pixel<W>(first + q * samples + i, k));
        });
    std::memset(to, 0, (columns - 2 * windows) * samples * sizeof(T));
  }
};

}  // namespace bppsa::BPPSA_ISA
