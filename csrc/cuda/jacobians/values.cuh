#pragma once
// Values of transposed Jacobians whose pattern is fixed: of weights, of elementwise functions, of
// max-pooling.

#include "../../jacobians/max_pool.h"
#include "../device/threads.cuh"

namespace bppsa::cuda {

// A warp for each row: its entries lie side by side, and so do the sources of its template.
template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock) weights_kernel(WeightRequest args) {
  for_each_thread(args.rows * kWarp, [&](int64_t n) {
    const int64_t row = n / kWarp;
    const int32_t begin = args.crow[row], size = args.crow[row + 1] - begin;
    const int32_t* const source = args.source + args.first[row];
    T* const values = static_cast<T*>(args.values) + begin;
    for (int32_t e = n % kWarp; e < size; e += kWarp) {
      values[e] = static_cast<const T*>(args.weight)[source[e]];
    }
  });
}

template <typename T>
void run(const WeightRequest& args, Launcher& launch) {
  launch_threads(launch, "weights", weights_kernel<T>, args.rows * kWarp, args);
}

/// The derivative at x, as PyTorch defines it where there is none (0 at the kink of ReLU).
template <typename T>
BPPSA_DEVICE T derivative(Elementwise function, T x, T slope) {
  if (function == Elementwise::relu) return x <= 0 ? T(0) : T(1);
  if (function == Elementwise::leaky_relu) return x > 0 ? T(1) : slope;
  if (function == Elementwise::tanh) {
    const T y = tanh(x);
    return 1 - y * y;
  }
  const T y = 1 / (1 + exp(-x));
  if (function == Elementwise::sigmoid) return y * (1 - y);
  return y * (1 + x * (1 - y));
}

template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock) elementwise_kernel(ElementwiseRequest args) {
  for_each_thread(args.n, [&](int64_t i) {
    static_cast<T*>(args.values)[i] =
        derivative(args.function, static_cast<const T*>(args.x)[i], static_cast<T>(args.slope));
  });
}

template <typename T>
void run(const ElementwiseRequest& args, Launcher& launch) {
  launch_threads(launch, "elementwise", elementwise_kernel<T>, args.n, args);
}

// --- max-pooling -------------------------------------------------------------------------------

// Which pixel of its plane each window takes: argmax (planes, y.out_size, x.out_size).
template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock)
    argmax_kernel(MaxPoolRequest args, int32_t* argmax) {
  const int64_t window_count = args.y.out_size * args.x.out_size;
  for_each_thread(args.planes * window_count, [&](int64_t n) {
    const T* const input =
        static_cast<const T*>(args.input) + n / window_count * args.y.size * args.x.size;
    argmax[n] =
        argmax_of_window(args, input, n % window_count / args.x.out_size, n % args.x.out_size);
  });
}

// The entries of one pixel: the windows that read it, by row and column.
template <typename T>
__global__ void __launch_bounds__(kThreadsOfBlock)
    max_pool_kernel(MaxPoolRequest args, const int32_t* argmax) {
  const Axis &Y = args.y, &X = args.x;
  const int64_t plane_size = Y.size * X.size, window_count = Y.out_size * X.out_size;
  const int64_t entries_of_row = X.first[X.size], entries = Y.first[Y.size] * entries_of_row;
  for_each_thread(args.planes * plane_size, [&](int64_t n) {
    const int64_t plane = n / plane_size, pixel = n % plane_size;
    const int64_t y = pixel / X.size, x = pixel % X.size;
    const int32_t* const taken = argmax + plane * window_count;
    const int64_t rows = Y.first[y + 1] - Y.first[y];
    T* value = static_cast<T*>(args.values) + plane * entries + Y.first[y] * entries_of_row +
               rows * X.first[x];
    for (int64_t v = Y.first[y]; v < Y.first[y + 1]; ++v) {
      for (int64_t h = X.first[x]; h < X.first[x + 1]; ++h) {
        *value++ = taken[Y.out[v] * X.out_size + X.out[h]] == pixel ? T(1) : T(0);
      }
    }
  });
}

template <typename T>
void run(const MaxPoolRequest& args, Launcher& launch) {
  const int64_t windows = args.planes * args.y.out_size * args.x.out_size;
  int32_t* const argmax = launch.template allocate<int32_t>(windows);
  launch_threads(launch, "argmax", argmax_kernel<T>, windows, args, argmax);
  launch_threads(launch, "max pool", max_pool_kernel<T>, args.planes * args.y.size * args.x.size,
                 args, static_cast<const int32_t*>(argmax));
}

}  // namespace bppsa::cuda
