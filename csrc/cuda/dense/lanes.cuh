#pragma once
// How a block of threads lies over a matrix-vector product.
//
// A warp covers a tile of 32 / columns rows by `columns` columns, the warps of a block stand on top
// of each other, and the block slides over the matrix: to the right in blocks of kEntries * columns
// columns (Shape::kEntries), then down in passes of `rows` rows. The lanes of a row add up by
// shuffles. Neighbouring lanes run along whichever of row and column is contiguous in memory, and
// the tile keeps at least 8 entries in that direction once H is large: whole 32-byte sectors of
// float32 either way.

#include "chain.cuh"
#include "shape.cuh"

namespace bppsa::cuda {

/// Lanes for each row. Small matrices have as many as one fetch of the row needs, in either
/// direction.
template <class Shape>
BPPSA_BOTH int lane_columns(int H, bool columns_fast) {
  const int most = columns_fast || Shape::kOnePiece ? kWarp : 4;
  int columns = 1;
  while (columns < most && columns * Shape::kEntries < H) columns *= 2;
  return columns;
}

/// Threads that cover all rows at once, if a block can; it can where the shape is Small.
template <class Shape>
int walk_threads(int H, bool columns_fast) {
  const int rows_per_warp = kWarp / lane_columns<Shape>(H, columns_fast);
  return smaller(ceil_div(H, rows_per_warp) * kWarp, Shape::kWalkThreads);
}

struct Lanes {
  int columns;  // lanes of a row, a power of two
  int stride;   // distance between neighbours of a row, in lanes
  int column;   // this thread's place in the block of columns
  int row;      // and in the pass of rows
  int rows;     // rows of a pass

  BPPSA_DEVICE Lanes(int lane_columns, bool columns_fast) : columns(lane_columns) {
    const int rows_per_warp = kWarp / columns;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    stride = columns_fast ? 1 : rows_per_warp;
    column = columns_fast ? lane % columns : lane / rows_per_warp;
    row = warp * rows_per_warp + (columns_fast ? lane / columns : lane % rows_per_warp);
    rows = blockDim.x / kWarp * rows_per_warp;
  }

  /// The sum over the lanes of this thread's row. All lanes of the warp must call it.
  template <typename acc_t>
  BPPSA_DEVICE acc_t sum(acc_t part) const {
    for (int distance = stride; distance < stride * columns; distance *= 2) {
      part += __shfl_xor_sync(0xffffffffu, part, distance);
    }
    return part;
  }
};

}  // namespace bppsa::cuda
