// Values of transposed Jacobians whose pattern is fixed.
#pragma once

#include "../requests/jacobians.h"
#include "../simd/activations.h"
#include "../simd/buffer.h"
#include "../simd/lanes.h"
#include "../simd/parallel.h"
#include "max_pool.h"

namespace bppsa::BPPSA_ISA {

constexpr int64_t kValuesBlock = 4096;

// Each template once, then copied to the rows that have it.
template <typename T>
void weights_as(const WeightRequest& request, const Parallel& parallel) {
  const T* weight = static_cast<const T*>(request.weight);
  T* values = static_cast<T*>(request.values);
  const bool each_once = request.n == request.crow[request.rows];
  Buffer<T> templates(each_once ? 0 : request.n);
  T* gathered = each_once ? values : templates.data;
  for_each_index(parallel, ceil_div(request.n, kValuesBlock), [&](int64_t block) {
    const int64_t end = min(request.n, (block + 1) * kValuesBlock);
    for (int64_t e = block * kValuesBlock; e < end; ++e) gathered[e] = weight[request.source[e]];
  });
  if (each_once) return;
  for_each_index(parallel, request.rows, [&](int64_t row) {
    const int32_t begin = request.crow[row];
    std::memcpy(values + begin, gathered + request.first[row],
                size_t(request.crow[row + 1] - begin) * sizeof(T));
  });
}

// The derivative at x, as PyTorch defines it where there is none (0 at the kink of ReLU).
template <Elementwise kFunction, typename T, int W>
BPPSA_INLINE Vec<T, W> derivative(Vec<T, W> x, T slope) {
  const Vec<T, W> one = splat<T, W>(1), zero = {};
  if constexpr (kFunction == Elementwise::relu) return select<T, W>(x <= zero, zero, one);
  if constexpr (kFunction == Elementwise::leaky_relu)
    return select<T, W>(x > zero, one, splat<T, W>(slope));
  if constexpr (kFunction == Elementwise::tanh) {
    const Vec<T, W> y = tanh<T, W>(x);
    return one - y * y;
  }
  const Vec<T, W> y = sigmoid<T, W>(x);
  if constexpr (kFunction == Elementwise::sigmoid) return y * (one - y);
  return y * (one + x * (one - y));
}

template <Elementwise kFunction, typename T>
void elementwise_of(const ElementwiseRequest& request, const Parallel& parallel) {
  constexpr int W = kMaxWidth<T>;
  const T* x = static_cast<const T*>(request.x);
  T* values = static_cast<T*>(request.values);
  const T slope = T(request.slope);
  for_each_index(parallel, ceil_div(request.n, kValuesBlock), [&](int64_t block) {
    const int64_t end = min(request.n, (block + 1) * kValuesBlock);
    int64_t i = block * kValuesBlock;
    for (; i + W <= end; i += W)
      store<T, W>(values + i, derivative<kFunction, T, W>(load<T, W>(x + i), slope));
    if (i == end) return;
    const auto last = derivative<kFunction, T, W>(load_first<T, W>(x + i, end - i), slope);
    Lanes<T, W, 1>::store_first(values + i, W, last, end - i);
  });
}

template <typename T>
void elementwise_as(const ElementwiseRequest& request, const Parallel& parallel) {
  constexpr void (*functions[])(const ElementwiseRequest&, const Parallel&) = {
      elementwise_of<Elementwise::relu, T>, elementwise_of<Elementwise::leaky_relu, T>,
      elementwise_of<Elementwise::tanh, T>, elementwise_of<Elementwise::sigmoid, T>,
      elementwise_of<Elementwise::silu, T>};
  functions[int(request.function)](request, parallel);
}

// Windows of 2 x 2, two apart and all inside: the common case. Entry and pixel are one, and the
// four numbers of a window are marked at once, W windows side by side. Of two rows: the pixels from
// x to end.
template <typename T, int W>
BPPSA_INLINE void mark_quads(const T* in, int64_t in_width, T* out, int64_t end, int64_t x) {
  const Vec<T, W> one = splat<T, W>(1), zero = {};
  const auto taken = [&](auto mask)
                         __attribute__((always_inline)) { return select<T, W>(mask, one, zero); };
  for (; x + 2 * W <= end; x += 2 * W) {
    const T *upper = in + x, *lower = upper + in_width;
    const Vec<T, W> u0 = load<T, W>(upper), u1 = load<T, W>(upper + W);
    const Vec<T, W> l0 = load<T, W>(lower), l1 = load<T, W>(lower + W);
    const Vec<T, W> a = evens<T, W>(u0, u1), b = odds<T, W>(u0, u1);
    const Vec<T, W> c = evens<T, W>(l0, l1), d = odds<T, W>(l0, l1);
    const auto right = (b > a) | (b != b);
    Vec<T, W> best = select<T, W>(right, b, a);
    const auto below = (c > best) | (c != c);
    best = select<T, W>(below, c, best);
    const auto last = (d > best) | (d != d);
    store_interleaved<T, W>(out + x, taken(~(right | below | last)),
                            taken(right & ~(below | last)));
    store_interleaved<T, W>(out + end + x, taken(below & ~last), taken(last));
  }
  if constexpr (W > 1) mark_quads<T, (W > kMinWidth<T> ? W / 2 : 1)>(in, in_width, out, end, x);
}

inline bool is_quads(const PoolAxis& pool, const Axis& axis) {
  return pool.kernel == 2 && pool.stride == 2 && pool.padding == 0 && pool.dilation == 1 &&
         2 * axis.out_size <= axis.size;
}

template <typename T>
void max_pool_as(const MaxPoolRequest& request, const Parallel& parallel) {
  const Axis &Y = request.y, &X = request.x;
  const int64_t entries = int64_t(Y.first[Y.size]) * X.first[X.size];
  const auto input = [&](int64_t plane) {
    return static_cast<const T*>(request.input) + plane * Y.size * X.size;
  };
  const auto values = [&](int64_t plane) {
    return static_cast<T*>(request.values) + plane * entries;
  };
  if (is_quads(request.pool_y, Y) && is_quads(request.pool_x, X))
    return for_each_index(parallel, request.planes, [&](int64_t plane) {
      const int64_t width = 2 * X.out_size;
      for (int64_t row = 0; row < 2 * Y.out_size; row += 2)
        mark_quads<T, kMaxWidth<T>>(input(plane) + row * X.size, X.size,
                                    values(plane) + row * width, width, 0);
    });
  for_each_index(
      parallel, request.planes, [&] { return Buffer<int32_t>(Y.out_size * X.out_size); },
      [&](int64_t plane, Buffer<int32_t>& argmax) {
        for (int64_t oy = 0; oy < Y.out_size; ++oy)
          for (int64_t ox = 0; ox < X.out_size; ++ox)
            argmax.data[oy * X.out_size + ox] = argmax_of_window(request, input(plane), oy, ox);
        T* value = values(plane);
        int32_t pixel = 0;
        for (int64_t y = 0; y < Y.size; ++y)
          for (int64_t x = 0; x < X.size; ++x, ++pixel)
            for (int32_t v = Y.first[y]; v < Y.first[y + 1]; ++v)
              for (int32_t h = X.first[x]; h < X.first[x + 1]; ++h)
                *value++ = T(argmax.data[Y.out[v] * X.out_size + X.out[h]] == pixel);
      });
}

}  // namespace bppsa::BPPSA_ISA
