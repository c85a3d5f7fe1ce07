// Quantized tensors that outlive a call: a KV cache, the shared K and V of a tabular model's two calls, a
// serving engine's prefix.
//
// Their bytes are laid out for one kernel; what they hold (format, scales, means) is what docs/numerics.md
// says of the recipe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "octavo/export.hpp"
#include "octavo/status.hpp"
#include "octavo/tensor.hpp"

namespace octavo {

/// What a quantized buffer was made for; attend() refuses one that does not fit.
struct QuantizedKey {
  std::string kernel{};  ///< name of the kernel whose layout it has
  std::string recipe{};  ///< fingerprint of the fields that shaped it
  std::int64_t sequences = 0;
  std::int64_t heads = 0;
  std::int64_t tokens = 0;
  std::int64_t head_dim = 0;
  bool operator==(const QuantizedKey&) const = default;
};

/// A buffer, owned or the caller's. Moving is cheap; copying shares the buffer. Owned memory on a GPU is
/// given back in the order of the stream it was made on: join other streams that read it before the last
/// owner goes.
class QuantizedBuffer {
 public:
  QuantizedBuffer() = default;
  /// Uses the caller's memory (aligned to 64 bytes; on a GPU device memory aligned to 256), which must
  /// outlive this object.
  QuantizedBuffer(void* memory, std::size_t bytes) : data_(memory), bytes_(bytes) {}

  [[nodiscard]] bool empty() const { return data_ == nullptr; }
  [[nodiscard]] void* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  /// All empty before anything was quantized into it.
  [[nodiscard]] const QuantizedKey& key() const {
    static const QuantizedKey none;
    return key_ == nullptr ? none : *key_;
  }

 private:
  friend class Plan;
  std::shared_ptr<void> owned_;
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Device device_{};                          ///< of `owned_`
  std::shared_ptr<const QuantizedKey> key_;  ///< the plan's own: comparing pointers is enough for its buffers
};

class QuantizedQ : public QuantizedBuffer {
 public:
  using QuantizedBuffer::QuantizedBuffer;
};

class OCTAVO_API QuantizedKv : public QuantizedBuffer {
 public:
  using QuantizedBuffer::QuantizedBuffer;
  /// The same buffer seen as its key heads [first, first + count): a multi-query call on head 0 of what a
  /// multi-head call quantized.
  [[nodiscard]] Result<QuantizedKv> heads(std::int64_t first, std::int64_t count) const;
  [[nodiscard]] std::int64_t first_head() const { return first_head_; }
  [[nodiscard]] std::int64_t head_count() const { return head_count_ < 0 ? key().heads : head_count_; }

 private:
  std::int64_t first_head_ = 0;
  std::int64_t head_count_ = -1;
};

}  // namespace octavo
