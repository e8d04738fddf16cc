// The table of one instruction set.
#include "table.h"

namespace bppsa::BPPSA_ISA {

#define BPPSA_STRING_(x) #x
#define BPPSA_STRING(x) BPPSA_STRING_(x)
#define KERNEL(name, ...) name,
extern const Kernels table;
const Kernels table = {BPPSA_STRING(BPPSA_ISA), BPPSA_KERNELS(KERNEL)};

}  // namespace bppsa::BPPSA_ISA
