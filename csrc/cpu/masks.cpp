// Random masks, and dropout with one, on the CPU.
#include "../requests/masks.h"

#include "../operators/tensors.h"
#include "crew.h"
#include "large_results.h"
#include "levels/table.h"

namespace bppsa::cpu {
namespace {

// A mask of this size: true with probability p, as one int64, the seed, has it.
Tensor random_mask(const Tensor& seed, Ints size, double p) {
  STD_TORCH_CHECK(seed.numel() == 1 && seed.scalar_type() == ScalarType::Long,
                  "seed: wanted an int64");
  STD_TORCH_CHECK(p >= 0 && p < 1, "p: wanted a number in [0, 1)");
  const Tensor mask = torch::stable::new_empty(seed, size, ScalarType::Bool);
  MaskRequest request{};
  request.seed = uint64_t(*data<int64_t>(seed)), request.threshold = uint32_t(p * 0x1p32);
  request.size = mask.numel(), request.mask = static_cast<uint8_t*>(mask.data_ptr());
  if (request.size) kernels().random_mask(request, parallel_for_work(8 * request.size));
  return mask;
}

// A mask of this size: true with probability p, drawn as PyTorch's generator would whose state this
// is: that after it then.
Tensor bernoulli(const Tensor& state, Ints size, double p) {
  STD_TORCH_CHECK(state.scalar_type() == ScalarType::Byte && state.is_contiguous() &&
                      state.numel() >= int64_t(sizeof(MersenneState)),
                  "state: wanted that of a generator, as torch.get_rng_state() gives it");
  STD_TORCH_CHECK(p >= 0 && p <= 1, "p: found ", p, ", wanted a number in [0, 1]");
  BernoulliRequest request{};
  request.state = data<MersenneState>(state), request.p = p;
  STD_TORCH_CHECK(request.state->left >= 1 && request.state->left <= MersenneState::kWords &&
                      request.state->next + uint64_t(request.state->left) <=
                          uint64_t(MersenneState::kWords) + 1,
                  "state: it is no generator's");
  const Tensor mask = torch::stable::new_empty(state, size, ScalarType::Bool);
  request.size = mask.numel(), request.mask = static_cast<uint8_t*>(mask.data_ptr());
  if (request.size) kernels().bernoulli(request, parallel_for_work(0));
  return mask;
}

Tensor masked(const Tensor& x, const Tensor& mask, double scale) {
  STD_TORCH_CHECK(mask.scalar_type() == ScalarType::Bool && mask.is_contiguous() &&
                      mask.numel() == x.numel() && same_device(mask, x),
                  "mask: wanted a contiguous bool for each number of x");
  STD_TORCH_CHECK(x.is_contiguous(), "x: wanted a contiguous tensor");
  MaskedRequest request{};
  request.storage = real_storage(x, "x"), request.size = x.numel(), request.scale = scale;
  const Tensor output = empty_of_steps(x, x.sizes());
  request.x = x.data_ptr(), request.mask = static_cast<const uint8_t*>(mask.data_ptr());
  request.output = output.data_ptr();
  if (request.size) kernels().masked(request, parallel_for_work(2 * request.size));
  return output;
}

}  // namespace
}  // namespace bppsa::cpu

STABLE_TORCH_LIBRARY_IMPL(bppsa, CPU, m) {
  m.impl("random_mask", TORCH_BOX(&bppsa::cpu::random_mask));
  m.impl("bernoulli", TORCH_BOX(&bppsa::cpu::bernoulli));
  m.impl("masked", TORCH_BOX(&bppsa::cpu::masked));
}
