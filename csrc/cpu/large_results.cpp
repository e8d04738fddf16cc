// Pieces of memory between two tensors: see large_results.h.
#include "large_results.h"

#include <cstdlib>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace bppsa::cpu {
namespace {

constexpr int64_t kPage = 2 << 20;

// Pieces of the whole process that no tensor uses now, those freed longest ago first. One that was
// not wanted again while many others were freed goes back to the system.
class FreedPieces {
 public:
  // One of at least `bytes`, and not much more, which it is set to; null for none.
  void* take(int64_t& bytes) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    int best = -1;
    for (int i = 0; lock && i < count_; ++i)
      if (pieces_[i].bytes >= bytes && pieces_[i].bytes <= bytes + bytes / 4 &&
          (best < 0 || pieces_[i].bytes <= pieces_[best].bytes))
        best = i;
    if (best < 0) return nullptr;
    const Piece found = remove(best);
    bytes = found.bytes;
    return found.data;
  }

  void give(void* data, int64_t bytes) {
    // (Not waiting: in a process that was forked meanwhile, for ever.)
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || bytes > kMost) return std::free(data);
    ++given_;
    while (count_ && (count_ == kCount || held_ + bytes > kMost || pieces_[0].at < given_ - kOld))
      std::free(remove(0).data);
    pieces_[count_++] = {data, bytes, given_};
    held_ += bytes;
  }

 private:
  struct Piece {
    void* data;
    int64_t bytes;
    int64_t at;  // how many had been freed then
  };
  static constexpr int kCount = 256, kOld = 256;
  static constexpr int64_t kMost = int64_t(512) << 20;

  Piece remove(int i) {
    const Piece piece = pieces_[i];
    held_ -= piece.bytes;
    for (--count_; i < count_; ++i) pieces_[i] = pieces_[i + 1];
    return piece;
  }

  std::mutex mutex_;
  Piece pieces_[kCount];
  int count_ = 0;
  int64_t held_ = 0, given_ = 0;
};

// Never destroyed: tensors may be freed later than anything else.
FreedPieces& freed() {
  static FreedPieces& all = *new FreedPieces;
  return all;
}

void* allocate(int64_t bytes) {
  void* const data = std::aligned_alloc(kPage, bytes);
#if defined(MADV_HUGEPAGE)
  // Advice: where the system has none to give, or is set not to, nothing happens.
  if (data) madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

Tensor empty_of_steps(const Tensor& like, torch::headeronly::IntHeaderOnlyArrayRef size) {
  int64_t bytes = bytes_of(storage_of(like));
  for (int64_t n : size) bytes *= n;
#if defined(__SANITIZE_ADDRESS__)  // which notices what is touched beyond a piece
  constexpr int64_t kLarge = INT64_MAX;
#else
  // (Half a page: results of 4 MB left to the allocator cost a quarter of an LSTM's training step.)
  constexpr int64_t kLarge = kPage / 2;
#endif
  if (bytes < kLarge) return torch::stable::new_empty(like, size);
  bytes = (bytes + kPage - 1) / kPage * kPage;
  void* data = freed().take(bytes);
  if (!data) data = allocate(bytes);
  if (!data) return torch::stable::new_empty(like, size);  // which says that there is no memory
  Ints strides(size.size());
  int64_t stride = 1;
  for (size_t d = size.size(); d-- > 0; stride *= size[d]) strides[d] = stride;
  return torch::stable::from_blob(
      data, size, strides, torch::stable::Device(torch::headeronly::DeviceType::CPU),
      like.scalar_type(), [bytes](void* piece) { freed().give(piece, bytes); });
}

}  // namespace bppsa::cpu
