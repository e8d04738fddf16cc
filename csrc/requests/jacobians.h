// Sparse transposed Jacobians: their patterns, their values, their products.
//
// Matrices are CSR: crow (rows + 1), col and values (nnz); columns ascend within a row, none twice.
// Indices are 32 bits wide, also crow: nnz < 2^31. A batch shares the pattern; values of sample s
// and entry e lie at s * stride.sample + e * stride.entry (a shared row has stride.sample = 0).
#pragma once

#include "plan.h"

namespace bppsa {

struct CsrPattern {
  const int32_t *crow, *col;
};

struct Stride {
  int64_t sample, entry;
};

// One weight of a convolution, as seen from an input channel.
struct Tap {
  int32_t plane;  // first column of its output channel
  int16_t ky, kx;
  int32_t source;  // which weight
};

// One axis of a convolution. Rows of one class are read by the same taps, at the same distances
// from their first output.
struct TapClasses {
  int64_t classes, kernel;
  const int32_t* class_of;  // of each row or column of the input
  const int32_t* origin;    // its first output
  const int32_t* distance;  // (classes, kernel): how far behind it a tap's output is, -1 for none
};

// Rows are (channel, y, x) of the input, columns (channel, y, x) of the output. The entries of a
// row are a template, that of its channel and of the classes of y and x, moved to its origin.
struct ConvolutionRequest {
  int64_t channels, height, width;
  int64_t out_width;
  TapClasses y, x;
  const int64_t* first_tap;  // (channels + 1)
  const Tap* taps;           // of a channel: plane ascends, then ky and kx descend
  int32_t* size;             // (channels, y.classes, x.classes), for the count
  const int32_t* start;      // likewise: where a template begins
  int32_t *column, *source;  // of the templates: column of the entry at origin 0, which weight
  const int32_t* crow;
  int32_t *col, *first;  // first: where each row's template begins
};

// The outputs that read each input along one axis: first (size + 1), out ascending.
struct Axis {
  int64_t size, out_size;
  const int32_t *first, *out;
};

// Each channel on its own: rows (channel, y, x) of the input, columns (channel, y, x) of the
// output.
struct WindowRequest {
  int64_t channels;
  Axis y, x;
  int32_t *crow, *col;
};

// Windows of one pooling axis start at out * stride - padding.
struct PoolAxis {
  int64_t kernel, stride, padding, dilation;
};

struct MaxPoolRequest {
  Storage storage;
  int64_t planes;  // samples times channels
  Axis y, x;
  PoolAxis pool_y, pool_x;
  const void* input;  // (planes, y.size, x.size)
  void* values;       // (planes, entries of a plane)
};

enum class Elementwise { relu, leaky_relu, tanh, sigmoid, silu };

struct ElementwiseRequest {
  Storage storage;
  Elementwise function;
  double slope;  // leaky_relu
  int64_t n;
  const void* x;
  void* values;
};

// Entry e of row r is weight source[first[r] + e - crow[r]].
struct WeightRequest {
  Storage storage;
  int64_t rows, n;  // n: of source
  const void* weight;
  const int32_t *source, *first, *crow;
  void* values;
};

// C = A B, patterns only. A row's products are a_ik b_kj in the order of A's entries, then of row
// k of B. The row's program gives each product the place of c_ij in row i of C.
struct SymbolicRequest {
  int64_t rows, cols;  // of C
  CsrPattern a, b;
  // The count's results, of each row:
  int32_t* row_size;  // entries of C
  int64_t* products;
  uint64_t* hash;     // of the program
  uint8_t* in_order;  // whether it is 0, 1, 2, …: no two products meet, columns ascend
  // The fill:
  const int32_t* crow;     // of C
  int32_t* col;            // of C
  const int64_t* program;  // of each row: where it begins in `positions`, or -1 for in order
  const uint8_t* writes;   // whether this row writes its program, or only compares its own with it
  bool wide;               // positions of 32 bits, not 16
  void* positions;
  uint8_t* differs;  // of each comparing row: whether it does
  bool comparing;    // which rows to fill: those that compare, or the others, which come first
};

struct NumericRequest {
  Storage storage;
  int64_t rows, batch;
  CsrPattern a, b;
  int64_t b_rows, b_entries;
  const int32_t* crow;       // of C
  int64_t entries, longest;  // of C, and of its longest row
  const int64_t* program;
  const void* positions;  // null if all rows are in order
  bool wide;
  bool b_single;      // each row of B has one entry
  bool side_by_side;  // samples in memory; if not, entries
  const void *a_values, *b_values;
  Stride a_stride, b_stride;
  void* values;  // of C
  Stride stride;
};

// out[r] = sum over row r of values times x[col], for each sample. Vectors are (n, batch).
struct ApplyRequest {
  Storage storage;
  int64_t rows, entries, batch;
  CsrPattern a;
  const void* values;
  Stride stride;
  const void* x;
  void* out;
};

}  // namespace bppsa
