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
    T last[W] = {};
    for (int64_t k = i; k < end; ++k) last[k - i] = x[k];
    store<T, W>(last, derivative<kFunction, T, W>(load<T, W>(last), slope));
    for (int64_t k = i; k < end; ++k) values[k] = last[k - i];
  });
}

template <typename T>
void elementwise_as(const ElementwiseRequest& request, const Parallel& parallel) {
  switch (request.function) {
    case Elementwise::relu:
      return elementwise_of<Elementwise::relu, T>(request, parallel);
    case Elementwise::leaky_relu:
      return elementwise_of<Elementwise::leaky_relu, T>(request, parallel);
    case Elementwise::tanh:
      return elementwise_of<Elementwise::tanh, T>(request, parallel);
    case Elementwise::sigmoid:
      return elementwise_of<Elementwise::sigmoid, T>(request, parallel);
    case Elementwise::silu:
      return elementwise_of<Elementwise::silu, T>(request, parallel);
  }
}

// Which pixel of a plane each window takes.
template <typename T>
void argmax_of_windows(const MaxPoolRequest& request, const T* input, int32_t* argmax) {
  for (int64_t oy = 0; oy < request.y.out_size; ++oy)
    for (int64_t ox = 0; ox < request.x.out_size; ++ox)
      argmax[oy * request.x.out_size + ox] = argmax_of_window(request, input, oy, ox);
}

// Windows of 2 x 2, two apart and all inside: the common case, branch-free.
template <typename T>
void argmax_of_quads(const MaxPoolRequest& request, const T* input, int32_t* argmax) {
  const int64_t width = request.x.size;
  for (int64_t oy = 0; oy < request.y.out_size; ++oy) {
    const T *upper = input + 2 * oy * width, *lower = upper + width;
    for (int64_t ox = 0; ox < request.x.out_size; ++ox) {
      const T a = upper[2 * ox], b = upper[2 * ox + 1], c = lower[2 * ox], d = lower[2 * ox + 1];
      int32_t where = int32_t(2 * oy * width + 2 * ox);
      const int32_t first = where;
      T best = a;
      const bool right = b > best || b != b;
      best = right ? b : best, where = right ? first + 1 : where;
      const bool below = c > best || c != c;
      best = below ? c : best, where = below ? first + int32_t(width) : where;
      const bool last = d > best || d != d;
      argmax[oy * request.x.out_size + ox] = last ? first + int32_t(width) + 1 : where;
    }
  }
}

// Where such windows cover the plane, entry and pixel are one, and the four numbers of a window
// are marked at once, W windows side by side. Of two rows, from column x on.
template <typename T, int W>
BPPSA_INLINE void mark_quads(const T* in, T* out, int64_t width, int64_t x) {
  const Vec<T, W> one = splat<T, W>(1), zero = {};
  const auto taken = [&](auto mask)
                         __attribute__((always_inline)) { return select<T, W>(mask, one, zero); };
  for (; x + 2 * W <= width; x += 2 * W) {
    const Vec<T, W> upper[] = {load<T, W>(in + x), load<T, W>(in + x + W)};
    const Vec<T, W> lower[] = {load<T, W>(in + width + x), load<T, W>(in + width + x + W)};
    const Vec<T, W> a = evens<T, W>(upper[0], upper[1]), b = odds<T, W>(upper[0], upper[1]);
    const Vec<T, W> c = evens<T, W>(lower[0], lower[1]), d = odds<T, W>(lower[0], lower[1]);
    const auto right = (b > a) | (b != b);
    Vec<T, W> best = select<T, W>(right, b, a);
    const auto below = (c > best) | (c != c);
    best = select<T, W>(below, c, best);
    const auto last = (d > best) | (d != d);
    store_interleaved<T, W>(out + x, taken(~(right | below | last)),
                            taken(right & ~(below | last)));
    store_interleaved<T, W>(out + width + x, taken(below & ~last), taken(last));
  }
  if constexpr (W > 1) mark_quads<T, (W > kMinWidth<T> ? W / 2 : 1)>(in, out, width, x);
}

inline bool is_quads(const MaxPoolRequest& request) {
  const auto quad = [](const PoolAxis& p, const Axis& axis) {
    return p.kernel == 2 && p.stride == 2 && p.padding == 0 && p.dilation == 1 &&
           2 * axis.out_size <= axis.size;
  };
  return quad(request.pool_y, request.y) && quad(request.pool_x, request.x);
}

template <typename T>
void max_pool_as(const MaxPoolRequest& request, const Parallel& parallel) {
  const Axis &Y = request.y, &X = request.x;
  const int64_t entries = int64_t(Y.first[Y.size]) * X.first[X.size];
  const bool quads = is_quads(request);
  const bool tiled = quads && 2 * Y.out_size == Y.size && 2 * X.out_size == X.size;
  if (tiled)
    return for_each_index(parallel, request.planes, [&](int64_t plane) {
      const T* input = static_cast<const T*>(request.input) + plane * entries;
      T* value = static_cast<T*>(request.values) + plane * entries;
      for (int64_t row = 0; row < entries; row += 2 * X.size)
        mark_quads<T, kMaxWidth<T>>(input + row, value + row, X.size, 0);
    });
  for_each_index(
      parallel, request.planes, [&] { return Buffer<int32_t>(Y.out_size * X.out_size); },
      [&](int64_t plane, Buffer<int32_t>& argmax) {
        const T* input = static_cast<const T*>(request.input) + plane * Y.size * X.size;
        T* value = static_cast<T*>(request.values) + plane * entries;
        if (quads)
          argmax_of_quads(request, input, argmax.data);
        else
          argmax_of_windows(request, input, argmax.data);
        int32_t pixel = 0;
        for (int64_t y = 0; y < Y.size; ++y)
          for (int64_t x = 0; x < X.size; ++x, ++pixel)
            for (int32_t v = Y.first[y]; v < Y.first[y + 1]; ++v)
              for (int32_t h = X.first[x]; h < X.first[x + 1]; ++h)
                *value++ = T(argmax.data[Y.out[v] * X.out_size + X.out[h]] == pixel);
      });
}

}  // namespace bppsa::BPPSA_ISA
