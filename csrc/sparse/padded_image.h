// What a sparse layer reads: an image of every sample and channel with the samples innermost, and
// zeros around it as far as any weight reaches.
//
// A weight then reads, for any number of neighbouring pixels and all samples, one run of memory
// (pixels a stride apart: one run a pixel): the same multiplication of whole vectors everywhere, no
// case for the border. The copy costs one pass, where every number is read by dozens of weights; it
// is left out where there is nothing to pad and the samples lie innermost already.
#pragma once

#include "../simd/buffer.h"
#include "../simd/parallel.h"

namespace bppsa::BPPSA_ISA {

// Pixels begin to end - 1 along one dimension, where those from 0 to size - 1 exist.
struct Window {
  int64_t begin, end, size;

  int64_t length() const { return end - begin; }
  bool pads() const { return begin < 0 || end > size; }
};

template <typename T>
class PaddedImage {
  const bool packed_;
  const Buffer<T> memory_;

 public:
  const T* data;  // pixel (0, 0) of the first channel
  int64_t channel, row, column;

  // stride: of sample, channel, row, column.
  PaddedImage(const void* numbers, const int64_t (&stride)[4], int64_t samples, int64_t channels,
              const Window& rows, const Window& columns, const Parallel& parallel)
      : packed_(rows.pads() || columns.pads() || (stride[0] != 1 && samples > 1)),
        memory_(packed_ ? channels * rows.length() * columns.length() * samples : 0),
        data(static_cast<const T*>(numbers)),
        channel(stride[1]),
        row(stride[2]),
        column(stride[3]) {
    if (!packed_) return;
    const T* from = data;
    pack(samples, channels, rows, columns, parallel,
         [&](int64_t c, int64_t y, int64_t first, int64_t last, T* to) {
           copy_row(from + c * stride[1] + y * stride[2] + first * stride[3], stride[0], stride[3],
                    samples, last - first, to);
         });
  }

  // An image that is computed: write(channel, y, first, last, to) writes a row's columns from
  // `first` to `last` - 1.
  template <class Write>
  PaddedImage(int64_t samples, int64_t channels, const Window& rows, const Window& columns,
              const Parallel& parallel, const Write& write)
      : packed_(true), memory_(channels * rows.length() * columns.length() * samples) {
    pack(samples, channels, rows, columns, parallel, write);
  }

 private:
  template <class Write>
  void pack(int64_t samples, int64_t channels, const Window& rows, const Window& columns,
            const Parallel& parallel, const Write& write) {
    column = samples, row = columns.length() * samples, channel = rows.length() * row;
    // Row by row, as patches follow each other: a thread finds what it reads in its own cache.
    for_each_index(parallel, channels * rows.length(), [&](int64_t i) {
      const int64_t c = i % channels, y = rows.begin + i / channels;
      const bool exists = y >= 0 && y < rows.size;
      const int64_t first = exists ? min(max(columns.begin, int64_t(0)), columns.end) : columns.end;
      const int64_t last = exists ? max(min(columns.end, columns.size), first) : columns.end;
      T* to = memory_.data + c * channel + (y - rows.begin) * row;
      std::memset(to, 0, (first - columns.begin) * samples * sizeof(T));
      if (first < last) write(c, y, first, last, to + (first - columns.begin) * samples);
      std::memset(to + (last - columns.begin) * samples, 0,
                  (columns.end - last) * samples * sizeof(T));
    });
    data = memory_.data - rows.begin * row - columns.begin * column;
  }

  static void copy_row(const T* from, int64_t sample, int64_t column, int64_t samples,
                       int64_t columns, T* to) {
    if (sample != 1 && samples != 1)
      transpose(from, sample, column, samples, columns, to);
    else if (column == samples)
      std::memcpy(to, from, columns * samples * sizeof(T));
    else
      for (int64_t x = 0; x < columns; ++x)
        std::memcpy(to + x * samples, from + x * column, samples * sizeof(T));
  }

  // A few samples at a time: each cache line of a sample's row is used whole before it is lost.
  static void transpose(const T* from, int64_t sample, int64_t column, int64_t samples,
                        int64_t columns, T* to) {
    constexpr int64_t kBlock = 8;
    for (int64_t b = 0; b < samples; b += kBlock)
      for (int64_t x = 0; x < columns; ++x)
        for (int64_t k = b; k < min(b + kBlock, samples); ++k)
          to[x * samples + k] = from[k * sample + x * column];
  }
};

}  // namespace bppsa::BPPSA_ISA
