// Patches: the pixels and samples that a kernel holds in registers while it walks through weights.
//
// A weight is loaded once a patch and used for all its vectors: up to kPatchVectors of them, in
// groups (neighbouring rows or pixels) of neighbouring vectors; a quarter as many where each stands
// for a window of four pixels. Pixels whose samples follow those of their neighbour in both
// operands are one run, whatever the batch: a batch of 1 fills vectors too, with pixels.
#pragma once

#include "../simd/parallel.h"
#include "../simd/vec.h"
#include "survivors.h"

namespace bppsa::BPPSA_ISA {

constexpr int kPatchVectors = BPPSA_VECTOR_REGISTERS >= 32 ? 16 : 8;
// Those of a patch with W lanes each: single numbers come in runs shorter than a vector, a few at
// a time.
template <int W>
constexpr int kPatchOf = W > 1 ? kPatchVectors : 4;

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
  int64_t skip;         // lanes that its neighbour has
};

// Offsets of the four pixels of a window from its first one.
struct WindowPixels {
  int64_t offset[4];

  WindowPixels(int64_t row, int64_t column) : offset{0, column, row, row + column} {}
};

// What every result reads through the surviving weights.
template <typename T>
struct Reading {
  Survivors survivors;
  const int64_t* tap;  // offset in the source, by tap
  const T* source;
  int64_t source_channel;
  Grid grid;            // merged; here: results, there: source
  WindowPixels pixels;  // in the source, of results that are pooled

  const T* of(const Entry& entry) const {
    return source + entry.channel * source_channel + tap[entry.tap];
  }
};

// Calls body(groups, vectors) with both as compile-time constants: powers of two, their product at
// most Most.
template <int Most, int Groups = Most, int Vectors = 1, class Body>
BPPSA_INLINE void with_constants(int64_t groups, int64_t vectors, const Body& body) {
  if (vectors != Vectors) {
    if constexpr (Vectors < Most)
      return with_constants<Most, Most / (2 * Vectors), 2 * Vectors>(groups, vectors, body);
  } else if (groups == Groups) {
    return body(Constant<Groups>{}, Constant<Vectors>{});
  } else if constexpr (Groups > 1) {
    return with_constants<Most, Groups / 2, Vectors>(groups, vectors, body);
  }
}

// Calls body(groups, vectors, patch, channels) for the patches of a grid, in vectors of W lanes;
// cut(before, n) says which channels a thread takes of the next n vectors, with `before` behind it.
//
// Runs come in spans of 16, 8, 4, 2 and 1 vectors. A last vector that is not a whole one is laid
// over its neighbour, and never cut from it: no two threads write the same number.
template <int W, int Most, class Cut, class Body>
void for_each_patch(const Grid& grid, const Cut& cut, const Body& body) {
  int64_t row = 0, before = 0;
  const auto span = [&](int64_t lane, int64_t vectors, int64_t skip, const Channels& channels) {
    for (int64_t column = 0; column < grid.columns;) {
      int64_t groups = Most / vectors;
      while (column + groups > grid.columns) groups /= 2;
      const Patch patch{row * grid.here_row + column * grid.here_column + lane,
                        row * grid.there_row + column * grid.there_column + lane, skip};
      with_constants<Most>(groups, vectors, [&](auto g, auto v) { body(g, v, patch, channels); });
      column += groups;
    }
  };
  for (; row < grid.rows; ++row) {
    int64_t lane = 0;
    for (int64_t vectors = Most; vectors; vectors /= 2)
      for (; lane + vectors * W <= grid.lanes; lane += vectors * W) {
        const int64_t rest = grid.lanes - lane - vectors * W;
        const bool with_rest = rest > 0 && rest < W;
        const int64_t size = grid.columns * (vectors + with_rest);
        const Channels channels = cut(before, size);
        before += size;
        if (channels.begin == channels.end) continue;
        span(lane, vectors, 0, channels);
        if (with_rest) span(grid.lanes - W, 1, W - rest, channels);
      }
  }
}

// Calls body(width, pixels) with the lanes of a vector and the pixels of a result as compile-time
// constants.
template <typename T, class Body>
void with_layout(const Grid& grid, bool pooled, const Body& body) {
  with_width<T>(best_width<T>(grid.lanes), [&](auto width) {
    pooled ? body(width, Constant<4>{}) : body(width, Constant<1>{});
  });
}

}  // namespace bppsa::BPPSA_ISA
