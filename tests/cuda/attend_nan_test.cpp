// NaN and Inf stay in the sequence and head they are in, and show there; padding never does.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/rows.hpp"
#include "cuda/attend_compare.hpp"

namespace octavo::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Index ranges of one (sequence, head) in o and lse.
bool belongs(std::int64_t head, std::int64_t group, std::int64_t key_head) {
  return head / group == key_head;
}

/// Runs a case clean and with NaN or Inf at one place of q, k or v; everything of other sequences and key
/// heads must keep its bits, the place itself must show.
void check_spoilt(const AttendShape& shape, const std::string& name, char which, float value,
                  std::int64_t sequence, std::int64_t key_head, std::int64_t token,
                  AttendCase::Way way = AttendCase::Way::steps) {
  AttendShape s = shape;
  const Recipe recipe = gpu_recipe(name);
  s.absmax = needs_absmax(name);
  AttendCase c(s);
  c.send();
  const Plan plan = c.make_plan(recipe);
  const AttendResult clean = c.run(plan, way);
  const Problem p = c.problem(false);
  const Sequence seq = p.sequences[static_cast<std::size_t>(sequence)];
  const MutableTensorView t = which == 'q' ? c.q() : which == 'k' ? c.k() : c.v();
  const MutableHeadsView at = heads_view(t, p.options.layout);
  const std::int64_t head = which == 'q' ? key_head * p.group() : key_head;
  const std::int64_t begin = which == 'q' ? seq.q_begin : seq.k_begin;
  write_element(at.data, at.dtype, at.offset(seq.batch, head, begin + token) + 3 * at.channel_stride, value);
  c.send();
  const AttendResult spoilt = c.run(c.make_plan(recipe), way);
  SCOPED_TRACE(name + " " + which + " = " + std::to_string(value) + " in sequence " +
               std::to_string(sequence) + " key head " + std::to_string(key_head) + " token " +
               std::to_string(token) + ", " + to_text(s));
  std::int64_t changed = 0;
  bool shows = false;
  c.each_row({}, [&](std::int64_t line, const Sequence& of, std::int64_t h, std::int64_t row) {
    const bool own = of.index == sequence && belongs(h, p.group(), key_head) &&
                     (which != 'q' || (h == head && row == token));
    const auto from = static_cast<std::size_t>(line * s.head_dim);
    const auto size = static_cast<std::size_t>(s.head_dim);
    // Scales of q may be shared by the rows of a block or head.
    const bool near = which == 'q' && of.index == sequence && h == head;
    if (own || near) {
      for (std::size_t i = from; i < from + size; ++i) shows = shows || !std::isfinite(spoilt.o[i]);
      return;
    }
    const bool same = std::memcmp(clean.o.data() + from, spoilt.o.data() + from, size * sizeof(float)) == 0 &&
                      std::memcmp(&clean.lse[static_cast<std::size_t>(line)],
                                  &spoilt.lse[static_cast<std::size_t>(line)], sizeof(float)) == 0;
    changed += same ? 0 : 1;
  });
  EXPECT_EQ(changed, 0) << "rows of other heads and sequences changed";
  // An infinite query is beyond a given scale as any large one is: it clamps.
  if (which == 'q' && s.absmax && std::isinf(value)) return;
  EXPECT_TRUE(shows) << "the output of the head itself is finite";
}

TEST(AttendNaN, StaysInItsHeadAndSequence) {
  OCTAVO_NEEDS_HOPPER();
  const AttendShape dense{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 90, .kv_len = 150};
  // Key tiles of 128 to 192 keys reach from one sequence into the next two.
  const AttendShape packed{.q_heads = 4,
                           .kv_heads = 2,
                           .head_dim = 128,
                           .layout = Layout::thd,
                           .q_lens = {60, 70, 65, 3},
                           .k_lens = {65, 5, 70, 130}};
  const AttendShape lengths{.batch = 3,
                            .q_heads = 2,
                            .kv_heads = 2,
                            .q_len = 40,
                            .kv_len = 100,
                            .layout = Layout::nhd,
                            .lengths = {33, 100, 64}};
  for (const std::string& name : gpu_presets()) {
    for (const float value : {kNaN, -std::numeric_limits<float>::infinity()}) {
      for (const char which : {'q', 'k', 'v'}) {
        check_spoilt(dense, name, which, value, 0, 1, 77);
        check_spoilt(packed, name, which, value, 1, 0, 2);
        check_spoilt(packed, name, which, value, 2, 1, 64);
        check_spoilt(lengths, name, which, value, 1, 0, 0);
        if (name == "half") {  // reads the caller's tensors in one call
          check_spoilt(dense, name, which, value, 0, 1, 77, AttendCase::Way::given);
          check_spoilt(packed, name, which, value, 1, 0, 2, AttendCase::Way::given);
          check_spoilt(lengths, name, which, value, 1, 0, 0, AttendCase::Way::given);
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttendNaN, ShowsThroughTheMergeOfSplitKeys) {
  OCTAVO_NEEDS_HOPPER();
  AttendShape s{.batch = 2, .q_heads = 4, .kv_heads = 2, .q_len = 2, .kv_len = 3000, .key_splits = 5};
  for (const std::string& name : gpu_presets()) {
    for (const char which : {'k', 'v'}) {
      for (const std::int64_t token : {0, 1500, 2999}) check_spoilt(s, name, which, kNaN, 0, 1, token);
    }
  }
}

TEST(AttendNaN, RowsWithoutKeysAreZero) {
  OCTAVO_NEEDS_HOPPER();
  for (const std::string& name : gpu_presets()) {
    for (const std::int64_t dim : {64, 128}) {
      for (const char which : {'k', 'v'}) {
        constexpr std::int64_t kFirst = 23;  // the first query that sees a key
        AttendShape s{.q_heads = 4,
                      .kv_heads = 2,
                      .q_len = 70 + kFirst,
                      .kv_len = 70,
                      .head_dim = dim,
                      .causal = Causal::bottom_right};
        s.absmax = needs_absmax(name);
        AttendCase c(s);
        const MutableTensorView t = which == 'k' ? c.k() : c.v();
        const MutableHeadsView at = heads_view(t, s.layout);
        for (std::int64_t head = 0; head < s.kv_heads; ++head)
          write_element(at.data, at.dtype, at.offset(0, head, 5), kNaN);
        c.send();
        const AttendResult got = c.run(c.make_plan(gpu_recipe(name)));
        SCOPED_TRACE(name + " NaN in " + which + ", " + to_text(s));
        c.each_row({}, [&](std::int64_t line, const Sequence&, std::int64_t, std::int64_t row) {
          if (row >= kFirst) return;
          EXPECT_EQ(got.lse[static_cast<std::size_t>(line)], -std::numeric_limits<float>::infinity()) << row;
          for (std::int64_t d = 0; d < dim; ++d)
            EXPECT_EQ(got.o[static_cast<std::size_t>(line * dim + d)], 0.0F) << row << ", " << d;
        });
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttendNaN, RowsThatAMaskHidesWholeAreZero) {
  OCTAVO_NEEDS_HOPPER();
  constexpr std::int64_t kHidden[] = {7, 9, 65};  // the row of the NaN, one that shares its scale, another
  for (const std::string& name : gpu_presets()) {
    if (needs_absmax(name)) continue;
    for (const std::int64_t dim : {64, 128}) {
      for (const char which : {'q', 'k'}) {
        AttendShape s{
            .q_heads = 4, .kv_heads = 2, .q_len = 70, .kv_len = 300, .head_dim = dim, .mask = Extra::full};
        AttendCase c(s);
        const MutableTensorView t = which == 'q' ? c.q() : c.k();
        const MutableHeadsView at = heads_view(t, s.layout);
        for (std::int64_t head = 0; head < (which == 'q' ? s.q_heads : s.kv_heads); ++head)
          write_element(at.data, at.dtype, at.offset(0, head, 7), kNaN);
        const MutableTensorView mask = c.mask();
        for (std::int64_t head = 0; head < s.q_heads; ++head) {
          for (const std::int64_t row : kHidden) {
            for (std::int64_t key = 0; key < s.kv_len; ++key) {
              static_cast<std::uint8_t*>(
                  mask.data)[head * mask.strides[1] + row * mask.strides[2] + key * mask.strides[3]] = 0;
            }
          }
        }
        c.send();
        const AttendResult got = c.run(c.make_plan(gpu_recipe(name)));
        SCOPED_TRACE(name + " NaN in " + which + ", " + to_text(s));
        const Sequence& seq = c.problem(false).sequences[0];
        for (std::int64_t head = 0; head < s.q_heads; ++head) {
          for (const std::int64_t row : kHidden) {
            const std::int64_t line = c.line(seq, head, row);
            EXPECT_EQ(got.lse[static_cast<std::size_t>(line)], -std::numeric_limits<float>::infinity())
                << row;
            for (std::int64_t d = 0; d < dim; ++d)
              EXPECT_EQ(got.o[static_cast<std::size_t>(line * dim + d)], 0.0F) << row << ", " << d;
          }
        }
        if (HasFailure()) return;
      }
    }
  }
}

TEST(AttendNaN, PaddingNeverShows) {
  OCTAVO_NEEDS_HOPPER();
  for (const std::string& name : gpu_presets()) {
    for (const std::int64_t dim : {64, 128}) {
      for (const int splits : {1, 3}) {
        // Padding is NaN (k) and Inf (v) here,
        AttendCase c({.batch = 4,
                      .q_heads = 4,
                      .kv_heads = 2,
                      .q_len = 70,
                      .kv_len = 300,
                      .head_dim = dim,
                      .lengths = {300, 1, 0, 129},
                      .absmax = needs_absmax(name),
                      .key_splits = splits});
        c.send();
        const auto way = name == "half" && splits == 1 ? AttendCase::Way::given : AttendCase::Way::steps;
        const AttendResult dirty = c.run(c.make_plan(gpu_recipe(name)), way);
        // and zero there.
        for (const MutableTensorView& t : {c.k(), c.v()}) {
          const MutableHeadsView at = heads_view(t, Layout::hnd);
          const std::vector<float> zeros(static_cast<std::size_t>(dim));
          for (const Sequence& seq : c.problem(false).sequences) {
            for (std::int64_t h = 0; h < 2; ++h) {
              for (std::int64_t i = seq.k_len; i < 300; ++i)
                write_row(at.data, at.dtype, at.offset(seq.batch, h, i), at.channel_stride, zeros.data(),
                          dim);
            }
          }
        }
        c.send();
        const AttendResult clean = c.run(c.make_plan(gpu_recipe(name)), way);
        EXPECT_TRUE(same_bits(dirty.o, clean.o)) << name << " D " << dim << " splits " << splits;
        EXPECT_TRUE(same_bits(dirty.lse, clean.lse)) << name << " D " << dim << " splits " << splits;
        EXPECT_EQ(difference(c, {}, dirty, dirty).not_finite, 0) << name;
      }
    }
  }
}

}  // namespace
}  // namespace octavo::test
