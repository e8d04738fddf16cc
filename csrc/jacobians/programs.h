// The programs of a product's rows: where each multiply-add goes (symbolic.h). Rows whose products
// meet in the same way share one. Host code, for no instruction set.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "../requests/jacobians.h"

namespace bppsa {

// The first row whose program each row shares, -1 for rows in order; returns the products of
// programs of their own. A hash is only a guess: the fill compares.
inline int64_t share_programs(const SymbolicRequest& request, int64_t* owner) {
  std::unordered_map<uint64_t, int64_t> first;
  int64_t own_products = 0;
  for (int64_t i = 0; i < request.rows; ++i) {
    if (request.in_order[i]) {
      owner[i] = -1;
      continue;
    }
    const auto [found, is_new] = first.try_emplace(request.hash[i], i);
    const int64_t o = found->second;
    const bool same =
        request.products[o] == request.products[i] && request.row_size[o] == request.row_size[i];
    owner[i] = same ? o : i;
    if (owner[i] == i) own_products += request.products[i];
  }
  return own_products;
}

// Where each row's program begins and which rows write theirs; returns the length of all programs.
// Not sharing: every row that is not in order has its own.
inline int64_t place_programs(int64_t rows, const int64_t* owner, const int64_t* products,
                              bool sharing, int64_t* program, uint8_t* writes) {
  int64_t length = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const bool own = owner[i] == i || (owner[i] >= 0 && !sharing);
    writes[i] = own;
    program[i] = owner[i] < 0 ? -1 : own ? length : program[owner[i]];
    if (own) length += products[i];
  }
  return length;
}

}  // namespace bppsa
