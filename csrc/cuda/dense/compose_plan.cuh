#pragma once
// How the products of segments are cut into panels, and the block that makes one (see compose.cuh).

#include <algorithm>

#include "lanes.cuh"

namespace bppsa::cuda {

constexpr int kPanelWidth = 36;  // columns of a panel, at most, where one cannot hold all H + 1
constexpr int kComposeThreads = 256;
constexpr int kHeld = 8;  // entries of the tile to come that a thread holds

struct ComposePlan {
  int width, panels;  // columns of a panel, a multiple of kTile; panels that make H + 1 columns
  int row_groups;     // threads on top of each other, kTile rows each
  int threads;
  size_t shared;  // bytes; 0: not even the narrowest panel fits this device
};

template <typename acc_t, class Shape>
size_t compose_shared(int H, int width) {
  const int tile = Shape::template kTileColumns<acc_t> * (Shape::kTileRows + 1);
  return 2 * sizeof(acc_t) * (size_t(H) * width + tile + Shape::kTileRows);
}

/// Threads on top of each other such that all passes over H rows are about equally full.
template <class Shape>
int even_row_groups(int H, int width) {
  const int most =
      smaller(Shape::kTileRows / Shape::kTile, kComposeThreads / (width / Shape::kTile));
  const int all = ceil_div(H, Shape::kTile);
  return ceil_div(all, ceil_div(all, most));
}

template <typename acc_t>
ComposePlan plan_small(int H) {
  const int width = round_up(H + 1, Small::kTile), row_groups = even_row_groups<Small>(H, width);
  // Enough threads for the sums and to walk the last segment. The latter are at least 4 H, so that
  // they can hold the tile too: kTileColumns * H entries, kHeld each.
  const int sums = width / Small::kTile * row_groups, walkers = walk_threads<Small>(H, true);
  const int threads = round_up(std::max(sums, walkers), kWarp);
  return {width, 1, row_groups, threads, compose_shared<acc_t, Small>(H, width)};
}

template <typename acc_t>
ComposePlan plan_large(int H, size_t shared_limit) {
  const int even = ceil_div(H + 1, ceil_div(H + 1, kPanelWidth));
  int width = round_up(even, Large::kTile);
  while (width > 0 && compose_shared<acc_t, Large>(H, width) > shared_limit) width -= Large::kTile;
  if (width == 0) return {};
  return {width, ceil_div(H + 1, width), even_row_groups<Large>(H, width), kComposeThreads,
          compose_shared<acc_t, Large>(H, width)};
}

template <typename acc_t>
ComposePlan plan_compose(int H, size_t shared_limit) {
  return H <= kSmallH ? plan_small<acc_t>(H) : plan_large<acc_t>(H, shared_limit);
}

}  // namespace bppsa::cuda
