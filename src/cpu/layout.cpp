// Sizes and offsets of the quantized buffers: one function lists the parts of a block, for measuring and for
// placing alike.
#include "cpu/layout.hpp"

#include "numerics/hadamard.hpp"

namespace octavo::cpu {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Hands out 64-byte aligned parts of a block; with a null base it only measures.
class Parts {
 public:
  explicit Parts(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::size_t count) {
    T* part = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + used_);
    used_ += (count * sizeof(T) + 63) / 64 * 64;
    return part;
  }
  [[nodiscard]] std::size_t used() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

}  // namespace

const AttentionOps& attention_ops(const TierOps& tier, Family family) {
  switch (family) {
    case Family::int8:
      return tier.int8;
    case Family::float32:
      return tier.float32;
    case Family::cpu8:
      return tier.cpu8;
  }
  return tier.int8;
}

int qk_channels(const Problem& problem, const Recipe& recipe) {
  const auto d = static_cast<int>(problem.head_dim);
  return static_cast<int>(
      round_up(recipe.rotate == Rotation::hadamard ? numerics::next_power_of_two(d) : d, kChannelBlock));
}

int value_channels(const Problem& problem) {
  return static_cast<int>(round_up(problem.head_dim, kChannelBlock));
}

BufferLayout::BufferLayout(const TierOps& tier, Family family, const Problem& problem, const Recipe& recipe)
    : tier_(tier),
      problem_(problem),
      recipe_(recipe),
      query_bytes_(family == Family::float32 ? sizeof(float) : tier.query_bytes),
      key_bytes_(family == Family::float32 ? sizeof(float) : tier.key_bytes),
      value_bytes_(attention_ops(tier, family).value_bytes),
      channels_(qk_channels(problem, recipe)),
      values_(value_channels(problem)) {
  kv_offset_.push_back(0);
  q_offset_.push_back(0);
  for (const Sequence& s : problem.sequences) {
    kv_offset_.push_back(kv_offset_.back() + kv_block_bytes(padded_keys(s)));
    q_offset_.push_back(q_offset_.back() + q_block_bytes(padded_rows(s)));
  }
}

std::int64_t BufferLayout::padded_keys(const Sequence& s) const {
  return round_up(s.k_len, recipe_.key_tile);
}
std::int64_t BufferLayout::padded_rows(const Sequence& s) const { return round_up(s.q_len, tier_.rows); }

namespace {

struct Sizes {
  std::size_t query, key, value, channels, values;
};

KvBlock take_kv(Parts& parts, const Sizes& size, std::size_t keys, bool centred) {
  KvBlock b;
  b.keys = parts.take<std::byte>(keys * size.channels * size.key);
  b.key_scale = parts.take<float>(keys);
  b.key_mean = parts.take<float>(size.channels);
  if (centred) b.centred = parts.take<float>(keys * size.channels);
  b.values = parts.take<std::byte>(keys * size.values * size.value);
  b.value_delta = parts.take<float>(size.values);
  b.value_mean = parts.take<float>(size.values);
  return b;
}

QBlock take_q(Parts& parts, const Sizes& size, std::size_t rows, bool means) {
  QBlock b;
  b.rows = parts.take<std::byte>(rows * size.channels * size.query);
  b.scale = parts.take<float>(rows);
  b.sum = parts.take<std::int32_t>(rows);
  b.key_mean_product = parts.take<float>(rows);
  if (means) b.row_mean = parts.take<float>((rows + kQueryBlock - 1) / kQueryBlock * size.channels);
  return b;
}

}  // namespace

std::size_t BufferLayout::kv_block_bytes(std::int64_t keys) const {
  Parts measure(nullptr);
  take_kv(measure,
          {query_bytes_, key_bytes_, value_bytes_, static_cast<std::size_t>(channels_),
           static_cast<std::size_t>(values_)},
          static_cast<std::size_t>(keys), recipe_.smooth_q);
  return measure.used();
}

std::size_t BufferLayout::q_block_bytes(std::int64_t rows) const {
  Parts measure(nullptr);
  take_q(measure,
         {query_bytes_, key_bytes_, value_bytes_, static_cast<std::size_t>(channels_),
          static_cast<std::size_t>(values_)},
         static_cast<std::size_t>(rows), recipe_.smooth_q);
  return measure.used();
}

std::size_t BufferLayout::kv_bytes(std::int64_t heads) const {
  return kv_offset_.back() * static_cast<std::size_t>(heads);
}
std::size_t BufferLayout::q_bytes() const {
  return q_offset_.back() * static_cast<std::size_t>(problem_.q_heads);
}

KvBlock BufferLayout::kv(std::byte* base, std::int64_t sequence, std::int64_t head,
                         std::int64_t heads) const {
  const auto i = static_cast<std::size_t>(sequence);
  const std::size_t block = kv_offset_[i + 1] - kv_offset_[i];
  Parts parts(base + kv_offset_[i] * static_cast<std::size_t>(heads) +
              block * static_cast<std::size_t>(head));
  return take_kv(parts,
                 {query_bytes_, key_bytes_, value_bytes_, static_cast<std::size_t>(channels_),
                  static_cast<std::size_t>(values_)},
                 static_cast<std::size_t>(padded_keys(problem_.sequences[i])), recipe_.smooth_q);
}

QBlock BufferLayout::q(std::byte* base, std::int64_t sequence, std::int64_t head) const {
  const auto i = static_cast<std::size_t>(sequence);
  const std::size_t block = q_offset_[i + 1] - q_offset_[i];
  Parts parts(base + q_offset_[i] * static_cast<std::size_t>(problem_.q_heads) +
              block * static_cast<std::size_t>(head));
  return take_q(parts,
                {query_bytes_, key_bytes_, value_bytes_, static_cast<std::size_t>(channels_),
                 static_cast<std::size_t>(values_)},
                static_cast<std::size_t>(padded_rows(problem_.sequences[i])), recipe_.smooth_q);
}

}  // namespace octavo::cpu
