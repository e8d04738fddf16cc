// The recurrent layers' kernels of one instruction set, for one cell (BPPSA_CELL, a formula of
// cells/) and dtype (BPPSA_REAL): a source of its own each, so that they compile side by side.
#include "../../cells/formulas.h"
#include "../../recurrent/backward.h"
#include "../../recurrent/forward.h"

namespace bppsa::BPPSA_ISA {

using Cell = CellOf<BPPSA_CELL, BPPSA_REAL>;
template void layer_forward<Cell>(const RecurrentForwardRequest&, const Parallel&);
template void layer_backward<Cell>(const RecurrentBackwardRequest&, const Plan&, const Parallel&);

}  // namespace bppsa::BPPSA_ISA
