// A sparse layer's forward and backward in terms of gather and correlate.
//
// Dimension 0 is rows, 1 columns. Output pixel o reads input pixel o * stride + k * dilation -
// padding through tap k. Of input pixels of one phase (their remainder modulo stride), pixel
// phase + i * stride reaches output pixel i + shift, shift = (phase + padding - k * dilation) /
// stride, for the taps k that leave no remainder: the input gradient is one gather a phase.
#pragma once

#include "../requests/sparse.h"
#include "correlate.h"
#include "gather.h"
#include "padded_image.h"

namespace bppsa::BPPSA_ISA {

inline Survivors survivors_of(const SparseConvRequest& request) {
  return {request.out_channels, request.rows, reinterpret_cast<const Entry*>(request.entries)};
}

// What of the input the outputs reach along dimension d.
inline Window input_window(const SparseConvRequest& request, int d) {
  const int64_t begin = -request.padding[d];
  const int64_t reach = (request.out_size[d] - 1) * request.stride[d] +
                        (request.kernel[d] - 1) * request.dilation[d] + 1;
  return {begin, begin + reach, request.in_size[d]};
}

template <typename T>
PaddedImage<T> input_image(const SparseConvRequest& request, const Parallel& parallel) {
  return PaddedImage<T>(request.x, request.x_stride, request.samples, request.in_channels,
                        input_window(request, 0), input_window(request, 1), parallel);
}

// By how much each tap is off in what is read: offset(ky, kx).
struct Taps : Buffer<int64_t> {
  template <class Offset>
  Taps(const SparseConvRequest& request, const Offset& offset)
      : Buffer<int64_t>(request.kernel[0] * request.kernel[1]) {
    int64_t* next = data;
    for (int64_t ky = 0; ky < request.kernel[0]; ++ky)
      for (int64_t kx = 0; kx < request.kernel[1]; ++kx) *next++ = offset(ky, kx);
  }
};

template <typename T>
Taps input_taps(const SparseConvRequest& request, const PaddedImage<T>& x) {
  return Taps(request, [&](int64_t ky, int64_t kx) {
    return (ky * request.dilation[0] - request.padding[0]) * x.row +
           (kx * request.dilation[1] - request.padding[1]) * x.column;
  });
}

// What results (windows of pixels if pooled, pixels otherwise), rows and columns of which are so
// far apart, read of the input.
template <typename T>
Reading<T> input_reading(const SparseConvRequest& request, const PaddedImage<T>& x,
                         const Taps& taps, int64_t row, int64_t column) {
  const int64_t down = request.stride[0] * x.row, right = request.stride[1] * x.column;
  const int64_t pixels = request.pool ? 2 : 1;
  const Grid grid{request.result_size[0], request.result_size[1], request.samples, row, column,
                  pixels * down,          pixels * right};
  return {survivors_of(request),    taps.data, x.data, x.channel, grid.merged(),
          WindowPixels(down, right)};
}

template <typename T>
void sparse_forward_as(const SparseForwardRequest& request, const Parallel& parallel) {
  const PaddedImage<T> x = input_image<T>(request, parallel);
  const Taps taps = input_taps(request, x);
  const int64_t column = request.samples, row = request.result_size[1] * column;
  gather<T>({input_reading(request, x, taps, row, column), static_cast<const T*>(request.values),
             static_cast<const T*>(request.bias), static_cast<T*>(request.output),
             request.result_size[0] * row, request.places, request.relu},
            parallel);
}

// By how many output pixels tap k of a phase is off; false if it never reaches the phase.
inline bool shift_of(const SparseConvRequest& request, int d, int64_t phase, int64_t k,
                     int64_t& shift) {
  const int64_t offset = phase + request.padding[d] - k * request.dilation[d];
  shift = offset / request.stride[d];
  return shift * request.stride[d] == offset;
}

inline int64_t phases(const SparseConvRequest& request, int d) {
  return min(request.stride[d], request.in_size[d]);
}

// Input pixels of a phase.
inline int64_t phase_size(const SparseConvRequest& request, int d, int64_t phase) {
  return ceil_div(request.in_size[d] - phase, request.stride[d]);
}

// What of the output's gradient the inputs reach.
inline Window grad_window(const SparseConvRequest& request, int d) {
  const int64_t first = request.padding[d] - (request.kernel[d] - 1) * request.dilation[d];
  const int64_t last = request.in_size[d] - 1 + request.padding[d];
  const int64_t out = request.out_size[d];
  return {min(first / request.stride[d], int64_t(0)), max(last / request.stride[d] + 1, out), out};
}

// The gradient of the layer's own output, with zeros around it.
template <typename T>
PaddedImage<T> grad_image(const SparseBackwardRequest& request, const Parallel& parallel) {
  const Window rows = grad_window(request, 0), columns = grad_window(request, 1);
  if (!request.relu && !request.pool)
    return PaddedImage<T>(request.grad, request.grad_stride, request.samples, request.out_channels,
                          rows, columns, parallel);
  const ResultGradient<T> result(request, static_cast<const T*>(request.grad));
  const int64_t channel = request.result_size[0] * request.result_size[1] * request.samples;
  return PaddedImage<T>(request.samples, request.out_channels, rows, columns, parallel,
                        [&](int64_t c, int64_t y, int64_t, int64_t, T* to) {
                          result.expand_row(c * channel, y, request.out_size[0],
                                            request.out_size[1], request.samples, to);
                        });
}

template <typename T>
void input_gradient(const SparseBackwardRequest& request, const Parallel& parallel) {
  const PaddedImage<T> grad = grad_image<T>(request, parallel);
  const int64_t nnz = survivors_of(request).size();
  Buffer<T> values(nnz);
  const int64_t block = 1 << 14;
  for_each_index(parallel, ceil_div(nnz, block), [&](int64_t i) {
    for (int64_t e = i * block; e < min((i + 1) * block, nnz); ++e)
      values.data[e] = static_cast<const T*>(request.values)[request.order_t[e]];
  });
  const int64_t column = request.samples, row = request.in_size[1] * column;
  for (int64_t py = 0; py < phases(request, 0); ++py)
    for (int64_t px = 0; px < phases(request, 1); ++px) {
      const Taps taps(request, [&](int64_t ky, int64_t kx) -> int64_t {
        int64_t dy, dx;
        const bool reaches = shift_of(request, 0, py, ky, dy) && shift_of(request, 1, px, kx, dx);
        return reaches ? dy * grad.row + dx * grad.column : 0;
      });
      const Survivors survivors{
          request.in_channels, request.rows_t + (py * request.stride[1] + px) * request.in_channels,
          reinterpret_cast<const Entry*>(request.entries_t)};
      const Grid grid{phase_size(request, 0, py),
                      phase_size(request, 1, px),
                      column,
                      request.stride[0] * row,
                      request.stride[1] * column,
                      grad.row,
                      grad.column};
      gather<T>({{survivors, taps.data, grad.data, grad.channel, grid.merged(), WindowPixels(0, 0)},
                 values.data,
                 nullptr,
                 static_cast<T*>(request.grad_x) + py * row + px * column,
                 request.in_size[0] * row,
                 nullptr,
                 false},
                parallel);
    }
}

template <typename T>
void weight_gradient(const SparseBackwardRequest& request, const Parallel& parallel) {
  const PaddedImage<T> x = input_image<T>(request, parallel);
  const Taps taps = input_taps(request, x);
  const int64_t* const size = request.result_size;
  const PaddedImage<T> grad(request.grad, request.grad_stride, request.samples,
                            request.out_channels, {0, size[0], size[0]}, {0, size[1], size[1]},
                            parallel);
  correlate<T>({input_reading(request, x, taps, grad.row, grad.column),
                ResultGradient<T>(request, grad.data), grad.channel,
                static_cast<T*>(request.grad_values), static_cast<T*>(request.grad_bias)},
               parallel);
}

template <typename T>
void sparse_backward_as(const SparseBackwardRequest& request, const Parallel& parallel) {
  if (request.grad_x) input_gradient<T>(request, parallel);
  if (request.grad_values || request.grad_bias) weight_gradient<T>(request, parallel);
}

}  // namespace bppsa::BPPSA_ISA
