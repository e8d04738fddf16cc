// A sparse layer's forward and backward in terms of gather and correlate.
//
// Dimension 0 is rows, 1 columns. Output pixel o reads input pixel o * stride + k * dilation -
// padding through tap k. Of input pixels of one phase (their remainder modulo stride), pixel
// phase + i * stride reaches output pixel i + shift, shift = (phase + padding - k * dilation) /
// stride, for the taps k that leave no remainder: the input gradient is one gather a phase.
#pragma once

#include "correlate.h"
#include "gather.h"

namespace bppsa::BPPSA_ISA {

inline Pattern pattern_of(const SparseLayerArgs& args) {
  return {args.out_channels, args.rows, reinterpret_cast<const Entry*>(args.entries)};
}

// What of the input the outputs reach along dimension d.
inline Window input_window(const SparseLayerArgs& args, int d) {
  const int64_t begin = -args.padding[d];
  const int64_t reach =
      (args.out_size[d] - 1) * args.stride[d] + (args.kernel[d] - 1) * args.dilation[d] + 1;
  return {begin, begin + reach, args.in_size[d]};
}

template <typename T>
Source<T> input_source(const SparseLayerArgs& args, const Parallel& parallel) {
  return Source<T>(args.x, args.x_stride, args.samples, args.in_channels, input_window(args, 0),
                   input_window(args, 1), parallel);
}

// Offsets in the input, by tap.
template <typename T>
struct InputTaps : Buffer<int64_t> {
  InputTaps(const SparseLayerArgs& args, const Source<T>& x)
      : Buffer<int64_t>(args.kernel[0] * args.kernel[1]) {
    for (int64_t ky = 0; ky < args.kernel[0]; ++ky)
      for (int64_t kx = 0; kx < args.kernel[1]; ++kx)
        data[ky * args.kernel[1] + kx] = (ky * args.dilation[0] - args.padding[0]) * x.row() +
                                         (kx * args.dilation[1] - args.padding[1]) * x.column();
  }
};

// Results and what they read: windows of pixels if pooled, pixels otherwise.
template <typename T>
Grid result_grid(const SparseLayerArgs& args, const Source<T>& x, int64_t row, int64_t column) {
  const int64_t pixels = args.pool ? 2 : 1;
  return {args.result_size[0],
          args.result_size[1],
          args.samples,
          row,
          column,
          pixels * args.stride[0] * x.row(),
          pixels * args.stride[1] * x.column()};
}

template <typename T>
void sparse_layer_forward(const SparseForwardArgs& args, const Parallel& parallel) {
  const Source<T> x = input_source<T>(args, parallel);
  const InputTaps<T> taps(args, x);
  const int64_t column = args.samples, row = args.result_size[1] * column;
  gather<T>(
      {pattern_of(args), static_cast<const T*>(args.values), static_cast<const T*>(args.bias),
       taps.data, x.data(), x.channel(), static_cast<T*>(args.output), args.result_size[0] * row,
       result_grid(args, x, row, column).merged(),
       WindowPixels(args.stride[0] * x.row(), args.stride[1] * x.column()), args.places, args.relu},
      parallel);
}

// By how many output pixels tap k of a phase is off; false if it never reaches the phase.
inline bool shift_of(const SparseLayerArgs& args, int d, int64_t phase, int64_t k, int64_t& shift) {
  const int64_t offset = phase + args.padding[d] - k * args.dilation[d];
  shift = offset / args.stride[d];
  return shift * args.stride[d] == offset;
}

inline int64_t phases(const SparseLayerArgs& args, int d) {
  return min(args.stride[d], args.in_size[d]);
}

// Input pixels of a phase.
inline int64_t phase_size(const SparseLayerArgs& args, int d, int64_t phase) {
  return ceil_div(args.in_size[d] - phase, args.stride[d]);
}

// What of the output's gradient the inputs reach.
inline Window grad_window(const SparseLayerArgs& args, int d) {
  Window window{0, args.out_size[d], args.out_size[d]};
  int64_t shift;
  for (int64_t phase = 0; phase < phases(args, d); ++phase)
    for (int64_t k = 0; k < args.kernel[d]; ++k)
      if (shift_of(args, d, phase, k, shift)) {
        window.begin = min(window.begin, shift);
        window.end = max(window.end, phase_size(args, d, phase) + shift);
      }
  return window;
}

template <typename T>
ResultGradient<T> result_gradient(const SparseBackwardArgs& args) {
  return {static_cast<const T*>(args.grad), static_cast<const T*>(args.output), args.places};
}

// The gradient of the layer's own output, with zeros around it.
template <typename T>
Source<T> grad_source(const SparseBackwardArgs& args, const Parallel& parallel) {
  const Window rows = grad_window(args, 0), columns = grad_window(args, 1);
  if (!args.relu && !args.pool)
    return Source<T>(args.grad, args.grad_stride, args.samples, args.out_channels, rows, columns,
                     parallel);
  const auto result = result_gradient<T>(args);
  const int64_t channel = args.result_size[0] * args.result_size[1] * args.samples;
  return Source<T>(args.samples, args.out_channels, rows, columns, parallel,
                   [&](int64_t c, int64_t y, int64_t, int64_t, T* to) {
                     result.expand_row(c * channel, y, args.out_size[0], args.out_size[1],
                                       args.samples, to);
                   });
}

template <typename T>
void input_gradient(const SparseBackwardArgs& args, const Parallel& parallel) {
  const Source<T> grad = grad_source<T>(args, parallel);
  const int64_t nnz = pattern_of(args).size();
  Buffer<T> values(nnz);
  const int64_t block = 1 << 14;
  for_each_index(parallel, ceil_div(nnz, block), [&](int64_t i) {
    for (int64_t e = i * block; e < min((i + 1) * block, nnz); ++e)
      values.data[e] = static_cast<const T*>(args.values)[args.order_t[e]];
  });
  const int64_t column = args.samples, row = args.in_size[1] * column;
  Buffer<int64_t> taps(args.kernel[0] * args.kernel[1]);
  for (int64_t py = 0; py < phases(args, 0); ++py)
    for (int64_t px = 0; px < phases(args, 1); ++px) {
      for (int64_t ky = 0; ky < args.kernel[0]; ++ky)
        for (int64_t kx = 0; kx < args.kernel[1]; ++kx) {
          int64_t dy, dx;
          if (shift_of(args, 0, py, ky, dy) && shift_of(args, 1, px, kx, dx))
            taps.data[ky * args.kernel[1] + kx] = dy * grad.row() + dx * grad.column();
        }
      const Grid grid{phase_size(args, 0, py),
                      phase_size(args, 1, px),
                      args.samples,
                      args.stride[0] * row,
                      args.stride[1] * column,
                      grad.row(),
                      grad.column()};
      const Pattern pattern{args.in_channels,
                            args.rows_t + (py * args.stride[1] + px) * args.in_channels,
                            reinterpret_cast<const Entry*>(args.entries_t)};
      gather<T>({pattern, values.data, nullptr, taps.data, grad.data(), grad.channel(),
                 static_cast<T*>(args.grad_x) + py * row + px * column, args.in_size[0] * row,
                 grid.merged(), WindowPixels(0, 0), nullptr, false},
                parallel);
    }
}

template <typename T>
void weight_gradient(const SparseBackwardArgs& args, const Parallel& parallel) {
  const Source<T> x = input_source<T>(args, parallel);
  const InputTaps<T> taps(args, x);
  const Window rows{0, args.result_size[0], args.result_size[0]};
  const Window columns{0, args.result_size[1], args.result_size[1]};
  const Source<T> grad(args.grad, args.grad_stride, args.samples, args.out_channels, rows, columns,
                       parallel);
  ResultGradient<T> result = result_gradient<T>(args);
  result.grad = grad.data();
  correlate<T>({pattern_of(args), taps.data, x.data(), x.channel(), result, grad.channel(),
                result_grid(args, x, grad.row(), grad.column()).merged(),
                WindowPixels(args.stride[0] * x.row(), args.stride[1] * x.column()),
                static_cast<T*>(args.grad_values), static_cast<T*>(args.grad_bias)},
               parallel);
}

template <typename T>
void sparse_layer_backward(const SparseBackwardArgs& args, const Parallel& parallel) {
  if (args.grad_x) input_gradient<T>(args, parallel);
  if (args.grad_values || args.grad_bias) weight_gradient<T>(args, parallel);
}

}  // namespace bppsa::BPPSA_ISA
