// Error measures, accumulated in double.
#include "octavo/metrics.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/device.hpp"
#include "core/heads_view.hpp"
#include "core/text.hpp"
#include "numerics/bfloat16.hpp"
#include "numerics/float16.hpp"

namespace octavo {
namespace {

double load(const HeadsView& t, std::int64_t at) {
  const auto* bytes = static_cast<const char*>(t.data) + at * static_cast<std::int64_t>(size_of(t.dtype));
  if (t.dtype == DType::f32) {
    float v = 0.0F;
    std::memcpy(&v, bytes, sizeof v);
    return static_cast<double>(v);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, bytes, sizeof bits);
  return static_cast<double>(t.dtype == DType::f16 ? numerics::f16_to_f32(bits)
                                                   : numerics::bf16_to_f32(bits));
}

struct Sums {
  double l1 = 0, l1_reference = 0, square = 0, out_square = 0, reference_square = 0, product = 0, largest = 0;
  std::int64_t count = 0;

  void add(double o, double r) {
    const double d = std::abs(o - r);
    l1 += d;
    l1_reference += std::abs(r);
    square += d * d;
    out_square += o * o;
    reference_square += r * r;
    product += o * r;
    largest = d > largest || std::isnan(d) ? d : largest;
    ++count;
  }
  void add(const Sums& s) {
    l1 += s.l1;
    l1_reference += s.l1_reference;
    square += s.square;
    out_square += s.out_square;
    reference_square += s.reference_square;
    product += s.product;
    largest = s.largest > largest || std::isnan(s.largest) ? s.largest : largest;
    count += s.count;
  }
  [[nodiscard]] ErrorMeasures measures() const {
    // Two zero tensors agree; anything against a zero reference is infinitely wrong.
    const auto ratio = [](double a, double b) {
      return b > 0.0 || std::isnan(a) || std::isnan(b) ? a / b : a > 0.0 ? HUGE_VAL : 0.0;
    };
    ErrorMeasures m;
    m.relative_l1 = ratio(l1, l1_reference);
    m.relative_l2 = std::sqrt(ratio(square, reference_square));
    // One root, so that equal tensors have exactly 1. Products of sums of f32 squares are within f64.
    const double norms = std::sqrt(out_square * reference_square);
    m.cossim =
        norms > 0.0 || std::isnan(norms) ? product / norms : (out_square == reference_square ? 1.0 : 0.0);
    m.rmse = count > 0 ? std::sqrt(square / static_cast<double>(count)) : 0.0;
    m.max_abs = largest;
    return m;
  }
};

}  // namespace

Result<Comparison> compare(const TensorView& out, const TensorView& reference, Layout layout) {
  const int rank = layout == Layout::thd ? 3 : 4;
  const std::pair<const char*, const TensorView*> both[] = {{"out", &out}, {"reference", &reference}};
  for (const auto& [name, t] : both) {
    if (t->rank != rank)
      return invalid_argument(concat(name, " has shape ", shape_text(*t), "; layout ", to_string(layout),
                                     " needs ", rank, " dimensions"));
    if (t->device.kind != Device::Kind::cpu)
      return unsupported(concat(name, " is on ", to_text(t->device), "; compare reads the CPU's memory"));
    if (t->dtype != DType::f32 && t->dtype != DType::f16 && t->dtype != DType::bf16) {
      return unsupported(
          concat(name, " has dtype ", to_string(t->dtype), "; f32, f16 and bf16 are supported"));
    }
  }
  if (out.shape != reference.shape)
    return invalid_argument(concat("out has shape ", shape_text(out), " and reference has ",
                                   shape_text(reference), "; they must be equal"));

  const auto& n = out.shape;
  const std::int64_t batch = layout == Layout::thd ? 1 : n[0];
  const std::int64_t heads = layout == Layout::nhd ? n[2] : n[1];
  const std::int64_t tokens = layout == Layout::hnd ? n[2] : layout == Layout::nhd ? n[1] : n[0];
  const std::int64_t channels = n[static_cast<std::size_t>(rank - 1)];
  const HeadsView o = heads_view(out, layout);
  const HeadsView r = heads_view(reference, layout);

  Comparison result;
  Sums all;
  double worst = -1.0;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      Sums head;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t d = 0; d < channels; ++d) {
          head.add(load(o, o.offset(b, h, t) + d * o.channel_stride),
                   load(r, r.offset(b, h, t) + d * r.channel_stride));
        }
      }
      all.add(head);
      const ErrorMeasures m = head.measures();
      const double size = std::isnan(m.relative_l1) ? HUGE_VAL : m.relative_l1;
      if (size > worst) {
        worst = size;
        result.worst_head = static_cast<std::int64_t>(result.heads.size());
      }
      result.heads.push_back(m);
    }
  }
  result.all = all.measures();
  return result;
}

}  // namespace octavo
