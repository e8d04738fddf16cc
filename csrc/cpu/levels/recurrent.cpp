// The recurrent layers' kernels of one instruction set: the cell and dtype of a request.
#include "../../cells/list.h"
#include "../../simd/numbers.h"
#include "table.h"

namespace bppsa::BPPSA_ISA {

// Of recurrent/, compiled in recurrent_cell.cpp: here they, and the formulas, are names alone.
template <class Formula, typename T>
struct CellOf;
template <class Cell>
void layer_forward(const RecurrentForwardRequest& request, const Parallel& parallel);
template <class Cell>
void layer_backward(const RecurrentBackwardRequest& request, const Plan& plan,
                    const Parallel& parallel);
template <class Cell>
void layer_jacobian(const RecurrentJacobianRequest& request, const Parallel& parallel);
#define CELL(name, formula, ...) struct formula;
BPPSA_CELLS(CELL)
#undef CELL

namespace {

// Calls body(Type<Cell>{}).
template <class Body>
void with_cell(const RecurrentRequest& request, const Body& body) {
  with_real(request.storage, [&](auto real) {
    using Real = typename decltype(real)::type;
    switch (request.cell) {
#define CELL(name, formula, ...) \
  case CellKind::name:           \
    return body(Type<CellOf<formula, Real>>{});
      BPPSA_CELLS(CELL)
#undef CELL
    }
  });
}

}  // namespace

void recurrent_forward(const RecurrentForwardRequest& request, const Parallel& parallel) {
  with_cell(request,
            [&](auto cell) { layer_forward<typename decltype(cell)::type>(request, parallel); });
}

void recurrent_backward(const RecurrentBackwardRequest& request, const Plan& plan,
                        const Parallel& parallel) {
  with_cell(request, [&](auto cell) {
    layer_backward<typename decltype(cell)::type>(request, plan, parallel);
  });
}

void recurrent_jacobian(const RecurrentJacobianRequest& request, const Parallel& parallel) {
  with_cell(request,
            [&](auto cell) { layer_jacobian<typename decltype(cell)::type>(request, parallel); });
}

}  // namespace bppsa::BPPSA_ISA
