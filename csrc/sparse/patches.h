// Patches: the pixels and samples that a kernel holds in registers while it walks through weights.
//
// A weight is loaded once a patch and used for all its vectors: up to kPatchVectors of them, in
// groups (neighbouring rows or pixels) of neighbouring vectors; a quarter as many where each stands
// for a window of four pixels. Pixels whose samples follow those
// of their neighbour in both operands are one run, whatever the batch: a batch of 1 fills vectors
// too, with pixels. A run's last vector, where it is not a whole one, is laid over its neighbour
// and `skip` says how many of its lanes the neighbour has.
#pragma once

#include "../simd/buffer.h"
#include "../simd/vec.h"

namespace bppsa::BPPSA_ISA {

constexpr int kPatchVectors = BPPSA_VECTOR_REGISTERS >= 32 ? 16 : 8;

// The places of one operand that meet places of another: both a regular grid of runs.
struct Grid {
  int64_t rows, columns, lanes;
  int64_t here_row, here_column;    // steps in the operand that is cut into patches
  int64_t there_row, there_column;  // and in the one that weights read

  // The same places in the longest runs.
  Grid merged() const {
    Grid grid = *this;
    for (int i = 0; i < 2 && (grid.here_column == grid.lanes || grid.columns == 1) &&
                    (grid.there_column == grid.lanes || grid.columns == 1);
         ++i) {
      grid.lanes *= grid.columns;
      grid.columns = grid.rows, grid.rows = 1;
      grid.here_column = grid.here_row, grid.there_column = grid.there_row;
    }
    return grid;
  }
};

struct Patch {
  int64_t here, there;  // offsets of its first lane
  int32_t groups, vectors, skip;
  int64_t before;  // vectors of all patches before this one
};

// All patches of a merged grid, for vectors of `width` lanes.
class Patches {
 public:
  Patches(const Grid& grid, int64_t width, int64_t most)
      : most_(most), memory_(count(grid, width)) {
    for (int64_t row = 0; row < grid.rows; ++row)
      for_each_span(grid, width, [&](int64_t lane, int64_t vectors, int64_t skip) {
        for (int64_t column = 0; column < grid.columns;) {
          const int64_t groups = groups_at(grid, column, vectors);
          memory_.data[size_++] = {row * grid.here_row + column * grid.here_column + lane,
                                   row * grid.there_row + column * grid.there_column + lane,
                                   int32_t(groups),
                                   int32_t(vectors),
                                   int32_t(skip),
                                   total_};
          total_ += groups * vectors;
          column += groups;
        }
      });
  }

  int64_t size() const { return size_; }
  int64_t vectors() const { return total_; }
  const Patch& operator[](int64_t i) const { return memory_.data[i]; }

  // The patch that holds vector v of all.
  int64_t holding(int64_t v) const {
    int64_t low = 0, high = size_;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (memory_.data[middle].before <= v ? low : high) = middle;
    }
    return low;
  }

 private:
  // Spans of 16, 8, 4, 2 and 1 vectors: what the kernels are compiled for.
  template <class Body>
  void for_each_span(const Grid& grid, int64_t width, const Body& body) const {
    int64_t lane = 0;
    for (int64_t vectors = most_; vectors; vectors /= 2)
      for (; lane + vectors * width <= grid.lanes; lane += vectors * width) body(lane, vectors, 0);
    if (lane < grid.lanes) body(grid.lanes - width, 1, lane + width - grid.lanes);
  }

  int64_t groups_at(const Grid& grid, int64_t column, int64_t vectors) const {
    int64_t groups = most_ / vectors;
    while (column + groups > grid.columns) groups /= 2;
    return groups;
  }

  int64_t count(const Grid& grid, int64_t width) const {
    int64_t n = 0;
    for_each_span(grid, width, [&](int64_t, int64_t vectors, int64_t) {
      for (int64_t column = 0; column < grid.columns; ++n)
        column += groups_at(grid, column, vectors);
    });
    return n * grid.rows;
  }

  const int64_t most_;
  Buffer<Patch> memory_;
  int64_t size_ = 0, total_ = 0;
};

// Calls body(groups, vectors) with the patch's own as compile-time constants: powers of two, their
// product at most Most.
template <int Most, int Groups = Most, int Vectors = 1, class Body>
BPPSA_INLINE void with_patch(const Patch& patch, const Body& body) {
  if (patch.vectors != Vectors) {
    if constexpr (Vectors < Most)
      return with_patch<Most, Most / (2 * Vectors), 2 * Vectors>(patch, body);
  } else if (patch.groups == Groups) {
    return body(Constant<Groups>{}, Constant<Vectors>{});
  } else if constexpr (Groups > 1) {
    return with_patch<Most, Groups / 2, Vectors>(patch, body);
  }
}

}  // namespace bppsa::BPPSA_ISA
