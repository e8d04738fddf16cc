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
 public:
  // stride: of sample, channel, row, column.
  PaddedImage(const void* data, const int64_t (&stride)[4], int64_t samples, int64_t channels,
              const Window& rows, const Window& columns, const Parallel& parallel)
      : packed_(needs_copy(stride, samples, rows, columns)),
        memory_(packed_ ? channels * rows.length() * columns.length() * samples : 0),
        data_(static_cast<const T*>(data)) {
    if (!packed_) {
      channel_ = stride[1], row_ = stride[2], column_ = stride[3];
      return;
    }
    const T* from = data_;
    pack(samples, channels, rows, columns, parallel,
         [&](int64_t c, int64_t y, int64_t first, int64_t last, T* to) {
           copy_row(from + c * stride[1] + y * stride[2], stride[0], stride[3], samples, first,
                    last, to);
         });
  }

  // An image that is computed: row(channel, y, first, last, to) writes a row's columns from `first`
  // to `last` - 1.
  template <class Row>
  PaddedImage(int64_t samples, int64_t channels, const Window& rows, const Window& columns,
              const Parallel& parallel, const Row& row)
      : packed_(true), memory_(channels * rows.length() * columns.length() * samples) {
    pack(samples, channels, rows, columns, parallel, row);
  }

  // Where pixel (0, 0) of the first channel lies.
  const T* data() const { return data_; }
  int64_t channel() const { return channel_; }
  int64_t row() const { return row_; }
  int64_t column() const { return column_; }

 private:
  static bool needs_copy(const int64_t (&stride)[4], int64_t samples, const Window& rows,
                         const Window& columns) {
    return rows.pads() || columns.pads() || (stride[0] != 1 && samples > 1);
  }

  template <class Row>
  void pack(int64_t samples, int64_t channels, const Window& rows, const Window& columns,
            const Parallel& parallel, const Row& row) {
    column_ = samples, row_ = columns.length() * samples, channel_ = rows.length() * row_;
    // Row by row, as tiles follow each other: a thread finds what it reads in its own cache.
    for_each_index(parallel, channels * rows.length(), [&](int64_t i) {
      const int64_t c = i % channels, y = rows.begin + i / channels;
      const bool exists = y >= 0 && y < rows.size;
      const int64_t first = exists ? min(max(columns.begin, int64_t(0)), columns.end) : columns.end;
      const int64_t last = exists ? max(min(columns.end, columns.size), first) : columns.end;
      T* to = memory_.data + c * channel_ + (y - rows.begin) * row_;
      std::memset(to, 0, (first - columns.begin) * samples * sizeof(T));
      if (first < last) row(c, y, first, last, to + (first - columns.begin) * samples);
      std::memset(to + (last - columns.begin) * samples, 0,
                  (columns.end - last) * samples * sizeof(T));
    });
    data_ = memory_.data - rows.begin * row_ - columns.begin * column_;
  }

  static void copy_row(const T* from, int64_t sample, int64_t column, int64_t samples,
                       int64_t first, int64_t last, T* to) {
    if (sample != 1 && samples != 1)
      transpose(from + first * column, sample, column, samples, last - first, to);
    else if (column == samples)
      std::memcpy(to, from + first * column, (last - first) * samples * sizeof(T));
    else
      for (int64_t x = first; x < last; ++x)
        std::memcpy(to + (x - first) * samples, from + x * column, samples * sizeof(T));
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

  const bool packed_;
  Buffer<T> memory_;
  const T* data_;
  int64_t channel_, row_, column_;
};

}  // namespace bppsa::BPPSA_ISA
