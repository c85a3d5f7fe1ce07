// The GPU quantizers against loops on the host: every byte of payload, scales, means, padding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "cuda/quantize_check.hpp"
#include "numerics/integers.hpp"

namespace octavo::test {
namespace {

void check_all(const QuantizeCase& c) {
  SCOPED_TRACE(to_text(c.shape) + " recipe " + c.recipe.name);
  const Quantized got = quantize(c);
  check_keys(c, got);
  check_values(c, got);
  check_queries(c, got);
}

void check_all(const QuantizeShape& s, const Recipe& r) {
  QuantizeCase c(s, r);
  c.send();
  check_all(c);
}

Recipe preset(const std::string& name) { return *recipe(name); }

constexpr const char* kPresets[] = {"sage2-8+8", "sage2-4+8", "sage2++-8+8", "sage-8+16", "fp8-head",
                                    "int8-icl",  "turbo8",    "turbo",       "turbo16",   "half"};

std::uint32_t flag_of(const QuantizeCase& c, const std::vector<std::byte>& kv) {
  std::uint32_t flag = 0;
  std::memcpy(&flag, kv.data() + cuda::KvLayout(c.problem, c.recipe, c.problem.kv_heads).nonfinite,
              sizeof flag);
  return flag;
}
std::uint32_t q_flag_of(const QuantizeCase& c, const std::vector<std::byte>& q) {
  std::uint32_t flag = 0;
  std::memcpy(&flag, q.data() + cuda::QLayout(c.problem, c.recipe).nonfinite, sizeof flag);
  return flag;
}

TEST(QuantizeGpu, EveryPresetOfEveryDtype) {
  OCTAVO_NEEDS_HOPPER();
  unsigned seed = 1;
  for (const char* name : kPresets) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      check_all({.batch = 2,
                 .q_heads = 4,
                 .kv_heads = 2,
                 .q_len = 200,
                 .kv_len = 700,
                 .dtype = dtype,
                 .seed = ++seed},
                preset(name));
      check_all({.q_heads = 2, .q_len = 129, .kv_len = 300, .head_dim = 128, .dtype = dtype, .seed = ++seed},
                preset(name));
    }
  }
}

TEST(QuantizeGpu, RandomProblems) {
  OCTAVO_NEEDS_HOPPER();
  std::mt19937 random(7);
  const auto one_of = [&](auto... values) {
    const std::common_type_t<decltype(values)...> list[] = {values...};
    return list[random() % sizeof...(values)];
  };
  for (unsigned seed = 0; seed < 120; ++seed) {
    QuantizeShape s;
    s.seed = 1000 + seed;
    s.batch = one_of(1, 1, 2, 5);
    s.kv_heads = one_of(1, 2, 3);
    s.q_heads = s.kv_heads * one_of(1, 1, 2, 3, 7);
    s.q_len = one_of(1, 5, 63, 64, 65, 127, 128, 129, 200, 257);
    s.kv_len = one_of(1, 7, 63, 64, 65, 127, 129, 192, 300, 511, 512, 513, 1100);
    s.head_dim = one_of(1, 2, 3, 8, 21, 40, 63, 64, 64, 64, 65, 72, 96, 100, 128, 128);
    s.dtype = one_of(DType::f32, DType::f16, DType::bf16);
    s.layout = one_of(Layout::hnd, Layout::nhd, Layout::thd);
    s.lengths = random() % 3 == 0;
    s.pad = one_of(0, 0, 0, 8, 3, 64);
    s.channel_step = one_of(1, 1, 1, 1, 2);
    s.scale = one_of(0.125F, -0.3F, 0.0F, 1.0F);
    Recipe r = preset(kPresets[random() % std::size(kPresets)]);
    if (r.q_group != Granularity::none) {
      r.q_group = one_of(Granularity::per_head, Granularity::per_block, Granularity::per_warp,
                         Granularity::per_thread, Granularity::per_token);
      r.k_group = one_of(Granularity::per_head, Granularity::per_block, Granularity::per_warp,
                         Granularity::per_thread);
      s.given = random() % 4 == 0;
    }
    r.smooth_k = random() % 4 != 0;
    r.smooth_v = random() % 3 == 0;
    r.rotate = random() % 2 == 0 ? Rotation::hadamard : Rotation::none;
    if (random() % 4 == 0) r.smooth_q = true;
    if (r.v_scale != ValueScale::none) r.v_scale = one_of(ValueScale::per_channel, ValueScale::per_head);
    if (r.qk_format == Format::e4m3 && random() % 3 == 0)
      r.q_range = r.k_range = 21.0F;  // not a value of the grid
    if (r.qk_format == Format::f16 && random() % 3 == 0) r.qk_format = Format::bf16;
    if (r.v_format == Format::f16 && random() % 2 == 0) r.v_format = Format::bf16;
    check_all(s, r);
    if (testing::Test::HasFailure()) return;
  }
}

/// Quotients x / delta that are ties of the integer grid, and those a product with the reciprocal rounds the
/// other way.
struct Ties {
  int exact = 0;
  int treacherous = 0;
};
Ties ties_of(const QuantizeCase& c, float range) {
  const HeadsView k = c.k.heads(c.shape.layout);
  Ties ties;
  for (std::int64_t first = 0; first < c.shape.kv_len; first += 64) {
    std::vector<float> x;
    float amax = 0.0F;
    for (std::int64_t i = first; i < std::min(first + 64, c.shape.kv_len); ++i) {
      for (std::int64_t d = 0; d < c.shape.head_dim; ++d) {
        x.push_back(read_element(k.data, k.dtype, k.offset(0, 0, i) + d * k.channel_stride));
        amax = std::max(amax, std::abs(x.back()));
      }
    }
    const float delta = numerics::group_delta(amax, range);
    for (const float value : x) {
      const float quotient = value / delta;
      if (std::abs(quotient - std::trunc(quotient)) == 0.5F) ++ties.exact;
      if (std::nearbyint(quotient) != std::nearbyint(value * (1.0F / delta))) ++ties.treacherous;
    }
  }
  return ties;
}

TEST(QuantizeGpu, TiesRoundAsTheQuotientDoes) {
  OCTAVO_NEEDS_HOPPER();
  Ties ties;
  for (const float range : {127.0F, 7.0F}) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      Recipe r = preset("sage2-8+8");
      r.smooth_k = false;
      r.k_group = Granularity::per_block;
      r.qk_format = range == 7.0F ? Format::int4 : Format::int8;
      r.q_range = r.k_range = range;
      QuantizeCase c({.q_len = 130, .kv_len = 1000, .dtype = DType::bf16, .seed = 300 + seed}, r);
      c.send();
      check_all(c);
      const Ties here = ties_of(c, range);
      ties.exact += here.exact;
      ties.treacherous += here.treacherous;
    }
  }
  EXPECT_GT(ties.exact, 100);
  EXPECT_GT(ties.treacherous, 10) << "of " << ties.exact << " ties";
}

TEST(QuantizeGpu, SequencesOf16BitValuesStartAtWholeTiles) {
  for (const char* name : {"turbo8", "sage2++-8+8", "sage-8+16", "turbo16", "half"}) {
    const Recipe r = preset(name);
    const std::int64_t align = r.v_format == Format::e4m3 ? 64 : 128;
    QuantizeShape s{.batch = 3, .q_len = 1, .kv_len = 65};
    for (const bool lengths : {false, true}) {
      s.lengths = lengths;
      QuantizeCase c(s, r);
      OCTAVO_NEEDS_HOPPER();
      c.send();
      const cuda::KvLayout at(c.problem, r, 1);
      EXPECT_EQ(at.row_align, align) << name;
      EXPECT_EQ(at.key_rows % align, 0) << name;
      if (!lengths) {
        EXPECT_EQ(cuda::sequence_list(c.problem, r, nullptr)[2].k_row, 256) << name;
      }
      check_all(c);
    }
  }
}

TEST(QuantizeGpu, EqualInputsGiveEqualBytesWhateverTheBufferHeld) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : kPresets) {
    QuantizeCase c({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 150, .kv_len = 2000, .lengths = true},
                   preset(name));
    c.send();
    const Quantized a = quantize(c, 0x00);
    const Quantized b = quantize(c, 0x00);
    EXPECT_EQ(a.kv, b.kv) << name;
    EXPECT_EQ(a.q, b.q) << name;
    const Quantized other = quantize(c, 0xFF);
    const cuda::KvLayout at(c.problem, c.recipe, c.problem.kv_heads);
    const auto range = [](const std::vector<std::byte>& v, std::size_t from, std::size_t to) {
      return std::vector<std::byte>(v.begin() + static_cast<std::ptrdiff_t>(from),
                                    v.begin() + static_cast<std::ptrdiff_t>(to));
    };
    EXPECT_EQ(range(a.kv, at.k, at.k + 64), range(other.kv, at.k, at.k + 64)) << name;
    check_keys(c, other);
    check_values(c, other);
    check_queries(c, other);
  }
}

TEST(QuantizeGpu, ZeroTinyAndHugeInputs) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : {"sage2-8+8", "turbo8", "turbo", "fp8-head", "sage2-4+8"}) {
    for (const float size : {0.0F, 1e-33F, 1e-20F, 1e-8F, 1e17F}) {
      Recipe r = preset(name);
      r.smooth_q = false;  // its checks are absolute
      check_all({.q_len = 70, .kv_len = 140, .dtype = DType::f32, .mean = 0.5F * size, .size = size}, r);
    }
  }
}

TEST(QuantizeGpu, NoKeysNoQueriesNoSequences) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : {"turbo8", "fp8-head", "sage-8+16", "half"}) {
    check_all({.q_len = 10, .kv_len = 0}, preset(name));
    check_all({.q_len = 0, .kv_len = 10}, preset(name));
    check_all({.q_len = 0, .kv_len = 0}, preset(name));
    check_all({.batch = 0, .q_len = 3, .kv_len = 5}, preset(name));
    QuantizeCase c({.q_len = 10, .kv_len = 0}, preset(name));
    c.send();
    const Quantized got = quantize(c);
    EXPECT_EQ(flag_of(c, got.kv), 0U);
    const cuda::KvLayout at(c.problem, c.recipe, 1);
    EXPECT_TRUE(std::all_of(got.kv.begin() + static_cast<std::ptrdiff_t>(at.k),
                            got.kv.begin() + static_cast<std::ptrdiff_t>(at.k + 64),
                            [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST(QuantizeGpu, NaNStaysInItsHeadAndIsFlagged) {
  OCTAVO_NEEDS_HOPPER();
  for (const char* name : kPresets) {
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      for (int which = 0; which < 3; ++which) {
        QuantizeCase c({.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 150}, preset(name));
        DeviceTensor& t = which == 0 ? c.q : which == 1 ? c.k : c.v;
        const std::int64_t last = which == 0 ? 89 : 142;
        for (const std::int64_t token :
             {std::int64_t{0}, std::int64_t{35}, std::int64_t{77}, last})  // of head 1
          write_element(t.host.data(), t.view.dtype, t.view.strides[1] + token * t.view.strides[2] + 5,
                        value);
        c.send();
        SCOPED_TRACE(std::string(name) + (which == 0 ? " q" : which == 1 ? " k" : " v"));
        const Quantized got = quantize(c);
        check_keys(c, got);
        check_values(c, got);
        check_queries(c, got);
        EXPECT_EQ(flag_of(c, got.kv) != 0, which != 0);
        EXPECT_EQ(q_flag_of(c, got.q) != 0, which == 0);
      }
    }
  }
}

TEST(QuantizeGpu, OverflowInTheRotationIsNotCalledTheCallersNaN) {
  OCTAVO_NEEDS_HOPPER();
  Recipe r = preset("turbo8");
  r.smooth_k = false;
  QuantizeCase c({.q_len = 8, .kv_len = 64, .dtype = DType::f32, .mean = 0.0F, .size = 0x1p125F}, r);
  c.send();
  const Quantized got = quantize(c);
  EXPECT_EQ(flag_of(c, got.kv), 0U);
  EXPECT_EQ(q_flag_of(c, got.q), 0U);
}

TEST(QuantizeGpu, CheckFiniteRefuses) {
  OCTAVO_NEEDS_HOPPER();
  QuantizeCase c({.q_len = 90, .kv_len = 150}, preset("turbo8"));
  write_element(c.k.host.data(), c.k.view.dtype, 100, std::numeric_limits<float>::quiet_NaN());
  c.send();
  c.problem.check_finite = true;
  const DeviceBytes kv(cuda::KvLayout(c.problem, c.recipe, 1).bytes);
  const Status s = cuda::quantize_kv(c.call(), c.k.view, c.v.view, kv.data());
  EXPECT_EQ(s.code(), StatusCode::invalid_argument);
  EXPECT_NE(s.message().find("NaN"), std::string::npos) << s.message();
}

TEST(QuantizeGpu, CheckFiniteOfQueriesReadsNoStaleFlag) {
  OCTAVO_NEEDS_HOPPER();
  for (const bool bad : {false, true}) {
    QuantizeCase c({.q_len = 90, .kv_len = 150}, preset("turbo8"));
    if (bad) write_element(c.q.host.data(), c.q.view.dtype, 100, std::numeric_limits<float>::quiet_NaN());
    c.send();
    c.problem.check_finite = true;
    const DeviceBytes kv(cuda::KvLayout(c.problem, c.recipe, 1).bytes);
    const DeviceBytes qq(cuda::QLayout(c.problem, c.recipe).bytes);
    ASSERT_TRUE(cuda::quantize_kv(c.call(), c.k.view, c.v.view, kv.data()).ok());
    const Status s = cuda::quantize_q(c.call(), c.q.view, {kv.data(), 1, 0}, qq.data());
    EXPECT_EQ(s.code(), bad ? StatusCode::invalid_argument : StatusCode::ok) << s.message();
  }
}

TEST(QuantizeGpu, MeanOfValuesWhoseRangeIsBeyondF32) {
  OCTAVO_NEEDS_HOPPER();
  QuantizeCase c({.q_len = 8, .kv_len = 64, .dtype = DType::f32}, preset("turbo8"));
  const auto count = static_cast<std::int64_t>(c.v.host.size() / sizeof(float));
  for (std::int64_t i = 0; i < count; ++i)
    write_element(c.v.host.data(), DType::f32, i, i / c.shape.head_dim % 4 == 0 ? -3e38F : 3e38F);
  c.send();
  const Quantized got = quantize(c);
  const cuda::KvLayout at(c.problem, c.recipe, c.problem.kv_heads);
  for (std::int64_t channel = 0; channel < c.problem.head_dim; ++channel) {
    float mean = 0.0F;
    std::memcpy(&mean, got.kv.data() + at.v_mean + channel * static_cast<std::int64_t>(sizeof mean),
                sizeof mean);
    EXPECT_TRUE(std::isfinite(mean)) << "channel " << channel;
  }
}

TEST(QuantizeGpu, QueriesOfSomeHeadsOfABuffer) {
  OCTAVO_NEEDS_HOPPER();
  QuantizeCase whole({.q_heads = 6, .kv_heads = 3, .q_len = 40, .kv_len = 90}, preset("turbo8"));
  whole.send();
  const Quantized all = quantize(whole);
  const DeviceBytes kv(all.kv);
  Problem part = whole.problem;  // query heads 2..3 and key head 1
  part.q_heads = 2;
  part.kv_heads = 1;
  TensorView q = whole.q.view;
  q.shape[1] = 2;
  q.data = whole.q.device->data() + 2 * q.strides[1] * 2;
  const cuda::QLayout at(part, whole.recipe);
  const cuda::QLayout all_at(whole.problem, whole.recipe);
  const DeviceBytes qq(at.bytes);
  ASSERT_TRUE(cuda::quantize_q({part, whole.recipe}, q, {kv.data(), 3, 1}, qq.data()).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const std::vector<std::byte> got = qq.read();
  const auto same = [&](std::size_t from, std::size_t to, std::int64_t bytes) {
    return std::memcmp(got.data() + from, all.q.data() + to + bytes, static_cast<std::size_t>(bytes)) == 0;
  };
  EXPECT_TRUE(same(at.q, all_at.q, at.q_rows * at.padded_dim));
  EXPECT_TRUE(same(at.q_scale, all_at.q_scale, at.q_rows * 4));
  EXPECT_TRUE(same(at.lse_shift, all_at.lse_shift, at.q_rows * 4));
}

TEST(QuantizeGpu, ManyTilesShareBlocks) {
  OCTAVO_NEEDS_HOPPER();
  const QuantizeShape s{.batch = 2, .q_heads = 32, .kv_heads = 32, .q_len = 1, .kv_len = 8300, .head_dim = 8};
  check_all(s, preset("turbo8"));
  QuantizeShape ragged = s;
  ragged.lengths = true;
  ragged.batch = 9;
  check_all(ragged, preset("turbo"));
}

TEST(QuantizeGpu, MoreThan65535Entries) {
  OCTAVO_NEEDS_HOPPER();
  check_all({.batch = 66000, .q_heads = 1, .q_len = 1, .kv_len = 2, .head_dim = 8}, preset("turbo8"));
}

}  // namespace
}  // namespace octavo::test
