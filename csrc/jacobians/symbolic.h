// The pattern of a product C = A B, and where in C each of its multiply-adds goes: done once a pair
// of patterns, so that multiply.h searches and sorts nothing.
//
// A row's columns are marked in a bitmap; the rank of a bit is the column's place in the row. A
// second bitmap marks the words in use, so that a row costs what it touches, however wide C is.
#pragma once

#include <cstring>

#include "../requests/jacobians.h"
#include "../simd/buffer.h"
#include "../simd/parallel.h"

namespace bppsa::BPPSA_ISA {

class RowOfProduct {
 public:
  explicit RowOfProduct(int64_t cols)
      : words_count_(ceil_div(max<int64_t>(cols, 1), 64)),
        summary_count_(ceil_div(words_count_, 64)),
        words_(words_count_),
        summary_(summary_count_),
        before_(words_count_) {
    std::memset(words_.data, 0, words_count_ * sizeof(uint64_t));
    std::memset(summary_.data, 0, summary_count_ * sizeof(uint64_t));
  }

  void mark(int32_t column) {
    words_.data[column >> 6] |= uint64_t(1) << (column & 63);
    summary_.data[column >> 12] |= uint64_t(1) << (column >> 6 & 63);
  }

  // Ranks the marked columns, passes each to `visit` in ascending order, and returns their number.
  template <class Visit>
  int32_t rank(const Visit& visit) {
    int32_t count = 0;
    for_each_word([&](int64_t w) {
      before_.data[w] = count;
      for (uint64_t bits = words_.data[w]; bits; bits &= bits - 1, ++count)
        visit(int32_t(w * 64 + __builtin_ctzll(bits)));
    });
    return count;
  }

  int32_t place(int32_t column) const {
    const uint64_t below = (uint64_t(1) << (column & 63)) - 1;
    return before_.data[column >> 6] +
           int32_t(__builtin_popcountll(words_.data[column >> 6] & below));
  }

  void clear() {
    for_each_word([&](int64_t w) { words_.data[w] = 0; });
    std::memset(summary_.data, 0, summary_count_ * sizeof(uint64_t));
  }

 private:
  template <class Body>
  void for_each_word(const Body& body) const {
    for (int64_t s = 0; s < summary_count_; ++s)
      for (uint64_t bits = summary_.data[s]; bits; bits &= bits - 1)
        body(s * 64 + __builtin_ctzll(bits));
  }

  int64_t words_count_, summary_count_;
  Buffer<uint64_t> words_, summary_;
  Buffer<int32_t> before_;
};

// Calls body(column) for each product of a row.
template <class Body>
BPPSA_INLINE void for_each_product(const CsrPattern& a, const CsrPattern& b, int64_t row,
                                   const Body& body) {
  for (int32_t j = a.crow[row]; j < a.crow[row + 1]; ++j) {
    const int32_t k = a.col[j];
    for (int32_t p = b.crow[k]; p < b.crow[k + 1]; ++p) body(b.col[p]);
  }
}

inline void count_rows(const SymbolicRequest& request, const Parallel& parallel) {
  for_each_index(
      parallel, request.rows, [&] { return RowOfProduct(request.cols); },
      [&](int64_t i, RowOfProduct& row) {
        for_each_product(request.a, request.b, i, [&](int32_t column) { row.mark(column); });
        const int32_t size = row.rank([](int32_t) {});
        int64_t products = 0;
        uint64_t hash = 0xcbf29ce484222325;
        bool in_order = true;
        for_each_product(request.a, request.b, i, [&](int32_t column) {
          const int32_t place = row.place(column);
          in_order = in_order && place == products;
          hash = (hash ^ uint64_t(place)) * 0x9e3779b97f4a7c15;
          hash ^= hash >> 29;
          ++products;
        });
        row.clear();
        request.row_size[i] = size;
        request.products[i] = products;
        request.hash[i] = hash;
        request.in_order[i] = in_order;
      });
}

template <typename P>
void write_rows_as(const SymbolicRequest& request, const Parallel& parallel) {
  for_each_index(
      parallel, request.rows, [&] { return RowOfProduct(request.cols); },
      [&](int64_t i, RowOfProduct& row) {
        const bool compares = request.program[i] >= 0 && !request.writes[i];
        if (compares != request.comparing) return;
        for_each_product(request.a, request.b, i, [&](int32_t column) { row.mark(column); });
        int32_t* col = request.col + request.crow[i];
        row.rank([&](int32_t column) { *col++ = column; });
        if (request.program[i] >= 0) {
          P* position = static_cast<P*>(request.positions) + request.program[i];
          uint8_t differs = 0;
          for_each_product(request.a, request.b, i, [&](int32_t column) {
            const P place = P(row.place(column));
            if (compares)
              differs |= *position != place;
            else
              *position = place;
            ++position;
          });
          request.differs[i] = differs;
        }
        row.clear();
      });
}

inline void write_rows(const SymbolicRequest& request, const Parallel& parallel) {
  request.wide ? write_rows_as<uint32_t>(request, parallel)
               : write_rows_as<uint16_t>(request, parallel);
}

}  // namespace bppsa::BPPSA_ISA
