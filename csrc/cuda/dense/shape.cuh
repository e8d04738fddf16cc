#pragma once
// Two shapes of work, chosen by H when a kernel is launched.
//
//   Small: one fetch of each thread takes in a whole matrix, and one tile holds it, so that indices
//          depend on nothing but the step.
//   Large: a matrix is worked off in pieces.
//
// kEntries * kAhead = 32 entries are in flight for each thread of a walk: for 512 threads of
// float32 64 KiB, about what a multiprocessor needs under way to keep its share of memory busy.

namespace bppsa::cuda {

constexpr int kSmallH = 32;

struct Small {
  static constexpr bool kOnePiece = true;
  static constexpr int kWalkThreads = 256;  // of a block that walks, at most
  static constexpr int kEntries = 4;        // of a row of the matrix, for each thread at a time
  static constexpr int kAhead = 8;          // fetches in flight for each thread
  static constexpr int kTile = 2;           // rows and columns of a product for each thread
  static constexpr int kTileRows = 32;      // the tile of a matrix that is staged in shared memory
  template <typename acc_t>
  static constexpr int kTileColumns = 32;
};

struct Large {
  static constexpr bool kOnePiece = false;
  static constexpr int kWalkThreads = 512;
  static constexpr int kEntries = 8;
  static constexpr int kAhead = 4;
  static constexpr int kTile = 4;
  static constexpr int kTileRows = 128;
  template <typename acc_t>
  static constexpr int kTileColumns = 64 / sizeof(acc_t);
};

/// Calls run(Small{}) or run(Large{}).
template <class Run>
void with_shape(int H, Run run) {
  H <= kSmallH ? run(Small{}) : run(Large{});
}

}  // namespace bppsa::cuda
