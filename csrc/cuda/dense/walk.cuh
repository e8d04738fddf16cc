#pragma once
// The walk: g[i] = A[i] g[i+1] + u[i], one step after the other, by one block for one sample.
//
// Only the vector has to wait for the step before; matrices do not. So every thread keeps the next
// kAhead fetches of its own entries in flight, in registers, across the ends of steps: a step then
// costs a product, a few shuffles and a barrier instead of a trip to memory.
//
// Invariant: before each step, `now` holds g[i+1] and all threads know it; the step writes `next`,
// which no thread reads before the barrier that ends the step. Both are padded with zeros, so that
// the entries past the end of a row (zeros as well) need no test.
//
// A Visit decides what becomes of a step: seen(a, x) for every entry of the matrix and its factor,
// row(i, r, y) for every finished row, by one thread; close(i, next) ends the step with a barrier
// and says whether it stands.

#include "lanes.cuh"

namespace bppsa::cuda {

constexpr int kVectorPad = 256;  // a multiple of every block of columns

inline size_t walk_shared(int H, size_t acc_size) { return 2 * round_up(H, kVectorPad) * acc_size; }

// The two vectors of a walk in shared memory.
template <typename acc_t>
struct Panes {
  acc_t *now, *next;

  BPPSA_DEVICE Panes(acc_t* shared, int H) : now(shared), next(shared + round_up(H, kVectorPad)) {}

  /// Fills `now` with entry(r) for r < H and all padding with zeros; ends with a barrier.
  template <class Entry>
  BPPSA_DEVICE void fill(int H, Entry entry) {
    for (int r = threadIdx.x; r < round_up(H, kVectorPad); r += blockDim.x) {
      now[r] = r < H ? entry(r) : acc_t(0);
      next[r] = acc_t(0);
    }
    __syncthreads();
  }

  BPPSA_DEVICE void swap() {
    acc_t* const before = now;
    now = next;
    next = before;
  }
};

// A place in the stream of pieces that a block works off: steps downwards, in each step all passes
// of rows, in each pass all blocks of columns.
struct Cursor {
  int64_t step;
  int pass = 0, block = 0;

  BPPSA_DEVICE void advance(int passes, int blocks) {
    if (++block < blocks) return;
    block = 0;
    if (++pass < passes) return;
    pass = 0;
    --step;
  }
};

// What a thread fetches at a time: entries of one row, and the row's u where this thread finishes
// it.
template <typename scalar_t, class Shape>
struct Fragment {
  scalar_t entry[Shape::kEntries];
  scalar_t direct;
};

template <typename scalar_t, class Shape>
struct Walker {
  using acc_t = Acc<scalar_t>;
  using Piece = Fragment<scalar_t, Shape>;

  const DenseChain<scalar_t>& chain;  // of one sample
  const int64_t first;                // no step before this one is fetched
  const Lanes lanes;
  const int passes, blocks;

  BPPSA_DEVICE Walker(const DenseChain<scalar_t>& chain, int64_t first)
      : chain(chain),
        first(first),
        lanes(lane_columns<Shape>(chain.H, chain.jac_t.columns_fast()), chain.jac_t.columns_fast()),
        passes(Shape::kOnePiece ? 1 : ceil_div(chain.H, lanes.rows)),
        blocks(Shape::kOnePiece ? 1 : ceil_div(chain.H, Shape::kEntries * lanes.columns)) {}

  BPPSA_DEVICE void advance(Cursor& at) const {
    Shape::kOnePiece ? void(--at.step) : at.advance(passes, blocks);
  }
  BPPSA_DEVICE int row(const Cursor& at) const { return at.pass * lanes.rows + lanes.row; }
  BPPSA_DEVICE int column(const Cursor& at, int e) const {
    return (at.block * Shape::kEntries + e) * lanes.columns + lanes.column;
  }
  BPPSA_DEVICE bool ends_row(const Cursor& at) const {
    return Shape::kOnePiece || at.block == blocks - 1;
  }
  BPPSA_DEVICE bool ends_step(const Cursor& at) const {
    return Shape::kOnePiece || (ends_row(at) && at.pass == passes - 1);
  }
  BPPSA_DEVICE bool owns_row(const Cursor& at) const {
    return ends_row(at) && lanes.column == 0 && row(at) < chain.H;
  }

  BPPSA_DEVICE Piece fetch(const Cursor& at) const {
    Piece piece;
    const bool inside = at.step >= first;
    const int r = row(at);
#pragma unroll
    for (int e = 0; e < Shape::kEntries; ++e) {
      const int c = column(at, e);
      piece.entry[e] = inside && r < chain.H && c < chain.H ? chain.jac_t(at.step, r, c)
                                                            : static_cast<scalar_t>(0.f);
    }
    piece.direct = inside && owns_row(at) ? chain.grad(at.step, r) : static_cast<scalar_t>(0.f);
    return piece;
  }

  template <class Visit>
  BPPSA_DEVICE acc_t dot(const Piece& piece, const Cursor& at, const acc_t* x, Visit& visit) const {
    acc_t part = 0;
#pragma unroll
    for (int e = 0; e < Shape::kEntries; ++e) {
      const acc_t a = static_cast<acc_t>(piece.entry[e]), factor = x[column(at, e)];
      visit.seen(a, factor);
      part += a * factor;
    }
    return part;
  }
};

/// Walks steps last-1 … first of the chain of one sample; panes.now holds g[last] and is known to
/// all threads. Returns the i for which panes.now holds g[i] at the end: `first`, or, where the
/// visit did not let step i-1 stand, the i before that step.
template <class Shape, typename scalar_t, class Visit>
BPPSA_DEVICE int64_t walk(const DenseChain<scalar_t>& chain, int64_t last, int64_t first,
                          Panes<Acc<scalar_t>>& panes, Visit& visit) {
  using acc_t = Acc<scalar_t>;
  const Walker<scalar_t, Shape> walker(chain, first);
  Cursor ahead{last - 1}, at{last - 1};
  Fragment<scalar_t, Shape> ring[Shape::kAhead];
#pragma unroll
  for (int slot = 0; slot < Shape::kAhead; ++slot) {
    ring[slot] = walker.fetch(ahead);
    walker.advance(ahead);
  }
  acc_t part = 0;
  for (;;) {
    // Unrolled, so that every slot of the ring is a fixed set of registers.
#pragma unroll
    for (int slot = 0; slot < Shape::kAhead; ++slot) {
      if (at.step < first) return first;
      part += walker.dot(ring[slot], at, panes.now, visit);
      const acc_t direct = static_cast<acc_t>(ring[slot].direct);
      ring[slot] = walker.fetch(ahead);
      walker.advance(ahead);
      if (walker.ends_row(at)) {
        const acc_t y = walker.lanes.sum(part) + direct;
        part = 0;
        if (walker.owns_row(at)) {
          panes.next[walker.row(at)] = y;
          visit.row(at.step, walker.row(at), y);
        }
      }
      if (walker.ends_step(at)) {
        if (!visit.close(at.step, panes.next)) return at.step + 1;
        panes.swap();
      }
      walker.advance(at);
    }
  }
}

// The visit of a walk that is there for its last vector only.
struct Silent {
  template <typename acc_t>
  BPPSA_DEVICE void seen(acc_t, acc_t) {}
  template <typename acc_t>
  BPPSA_DEVICE void row(int64_t, int, acc_t) {}
  template <typename acc_t>
  BPPSA_DEVICE bool close(int64_t, const acc_t*) {
    __syncthreads();
    return true;
  }
};

// The visit that writes the result: every g[i] it passes.
template <typename scalar_t>
struct Publish : Silent {
  Vectors<scalar_t> out;

  BPPSA_DEVICE explicit Publish(const Vectors<scalar_t>& out) : out(out) {}

  template <typename acc_t>
  BPPSA_DEVICE void row(int64_t i, int r, acc_t y) {
    out(i, r) = static_cast<scalar_t>(y);
  }
};

}  // namespace bppsa::cuda
