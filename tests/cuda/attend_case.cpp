#include "cuda/attend_case.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>

#include "reference/emulate.hpp"

namespace octavo::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr unsigned char kGuardByte = 0x5A;
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<std::int32_t> offsets(const std::vector<std::int64_t>& lens) {
  std::vector<std::int32_t> at{0};
  for (const std::int64_t n : lens) at.push_back(at.back() + static_cast<std::int32_t>(n));
  return at;
}

bool all_are(const std::vector<std::byte>& bytes, std::size_t from, std::size_t to, std::byte value) {
  return std::all_of(bytes.begin() + static_cast<std::ptrdiff_t>(from),
                     bytes.begin() + static_cast<std::ptrdiff_t>(to),
                     [&](std::byte b) { return b == value; });
}

TensorView ints(const std::vector<std::int32_t>& v) {
  return {v.data(), DType::i32, {static_cast<std::int64_t>(v.size())}};
}

}  // namespace

std::string to_text(const AttendShape& s) {
  static constexpr const char* kStorage[] = {"", " one buffer", " padded rows", " every second channel",
                                             " shared keys"};
  static constexpr const char* kExtra[] = {"none", "full", "rows", "keys", "heads"};
  std::string t = "B" + std::to_string(s.batch) + " H" + std::to_string(s.q_heads) + "/" +
                  std::to_string(s.kv_heads) + " L" + std::to_string(s.q_len) + "x" +
                  std::to_string(s.kv_len) + " D" + std::to_string(s.head_dim) + " " + to_string(s.dtype) +
                  " " + to_string(s.layout) + kStorage[static_cast<int>(s.storage)];
  if (s.causal != Causal::none) t += s.causal == Causal::top_left ? " top-left" : " bottom-right";
  if (s.window != Window{})
    t += " window " + std::to_string(s.window.left) + "," + std::to_string(s.window.right);
  const auto list = [&](const char* name, const std::vector<std::int64_t>& v) {
    if (v.empty()) return;
    t += std::string(" ") + name;
    for (const std::int64_t n : v) t += " " + std::to_string(n);
  };
  list("kv_lengths", s.lengths);
  list("q", s.q_lens);
  list("k", s.k_lens);
  if (s.scale) t += " scale " + std::to_string(*s.scale);
  if (s.mask != Extra::none) t += std::string(" mask ") + kExtra[static_cast<int>(s.mask)];
  if (s.bias != Extra::none)
    t += std::string(" bias ") + kExtra[static_cast<int>(s.bias)] + " " + to_string(s.bias_dtype);
  if (s.absmax) t += " q_absmax";
  if (!s.lse) t += " no lse";
  t += std::string(" out ") + (s.f32_out ? "f32" : to_string(s.dtype)) + (s.gaps_out ? " with gaps" : "");
  return t + " splits " + std::to_string(s.key_splits) + " seed " + std::to_string(s.seed);
}

GuardedBytes::GuardedBytes(std::size_t bytes, bool scratch) : bytes_(bytes) {
  EXPECT_EQ(cudaMalloc(&memory_, bytes + 2 * kBand), cudaSuccess) << bytes << " bytes";
  const bool raw = scratch && std::getenv("OCTAVO_TEST_RAW") != nullptr;
  EXPECT_EQ(fill_device(memory_, kGuardByte, kBand), cudaSuccess);
  if (!raw && bytes > 0) {
    EXPECT_EQ(fill_device(data(), 0xFF, bytes), cudaSuccess);
  }
  EXPECT_EQ(fill_device(data() + bytes, kGuardByte, kBand), cudaSuccess);
}

GuardedBytes::~GuardedBytes() { (void)cudaFree(memory_); }

std::vector<std::byte> GuardedBytes::read(std::ptrdiff_t from, std::size_t count) const {
  std::vector<std::byte> host(count);
  if (count > 0) {
    EXPECT_EQ(cudaMemcpy(host.data(), data() + from, count, cudaMemcpyDeviceToHost), cudaSuccess);
  }
  return host;
}

bool GuardedBytes::intact() const {
  for (const std::ptrdiff_t from :
       {-static_cast<std::ptrdiff_t>(kBand), static_cast<std::ptrdiff_t>(bytes_)}) {
    if (!all_are(read(from, kBand), 0, kBand, std::byte{kGuardByte})) return false;
  }
  return true;
}

AttendCase::AttendCase(AttendShape s) : shape_(std::move(s)), random_(shape_.seed) {
  if (shape_.layout == Layout::thd) {
    shape_.batch = static_cast<std::int64_t>(shape_.q_lens.size());
    shape_.q_len = std::accumulate(shape_.q_lens.begin(), shape_.q_lens.end(), std::int64_t{0});
    shape_.kv_len = std::accumulate(shape_.k_lens.begin(), shape_.k_lens.end(), std::int64_t{0});
    cu_q_ = offsets(shape_.q_lens);
    cu_k_ = offsets(shape_.k_lens);
  }
  for (const std::int64_t n : shape_.lengths) lengths_.push_back(static_cast<std::int32_t>(n));
  q_ = place(shape_.q_heads, shape_.q_len, 0, false);
  k_ = place(shape_.kv_heads, shape_.kv_len, shape_.q_heads, true);
  v_ = place(shape_.kv_heads, shape_.kv_len, shape_.q_heads + shape_.kv_heads, true);
  fill(q_, shape_.q_heads, shape_.q_len, shape_.q_size, 0.1F * shape_.k_mean, 0.0F, 0.0F);
  fill(k_, shape_.kv_heads, shape_.kv_len, 1.0F, shape_.k_mean, 0.0F, 0.0F);
  fill(v_, shape_.kv_heads, shape_.kv_len, 1.0F, 0.0F, shape_.v_mean, 0.0F);
  fill_padding();
  if (shape_.mask != Extra::none) mask_ = extra(shape_.mask, false);
  if (shape_.bias != Extra::none) bias_ = extra(shape_.bias, true);
  if (shape_.absmax) {
    const std::int64_t n = shape_.batch * shape_.q_heads;
    absmax_.buffer = std::make_shared<TwinBuffer>(static_cast<std::size_t>(n) * sizeof(float));
    absmax_.view = MutableTensorView(nullptr, DType::f32, {shape_.batch, shape_.q_heads});
    std::uniform_real_distribution<float> draw(2.5F * shape_.q_size, 4.5F * shape_.q_size);
    for (std::int64_t i = 0; i < n; ++i)
      write_element(absmax_.buffer->at(false), DType::f32, i, draw(random_));
  }
}

MutableTensorView AttendCase::view(Operand& o, bool on_device) {
  MutableTensorView v = o.view;
  v.data = o.buffer->at(on_device) + o.offset;
  if (on_device) v.device = kGpu;
  return v;
}

MutableTensorView AttendCase::device(char which) { return view(q_k_v(which), true); }

AttendCase::Operand AttendCase::place(std::int64_t heads, std::int64_t tokens, std::int64_t head_in_buffer,
                                      bool keys) {
  const AttendShape& s = shape_;
  const bool packed = s.layout == Layout::thd;
  const std::int64_t batch = packed ? 1 : s.batch;
  std::int64_t channel = 1;
  std::int64_t row = s.head_dim;
  if (s.storage == Storage::padded_rows) row += 3;
  if (s.storage == Storage::every_second) row *= channel = 2;
  std::int64_t head_step = s.layout == Layout::hnd ? tokens * row : row;
  std::int64_t token_step = s.layout == Layout::hnd ? row : heads * row;
  std::int64_t batch_step = heads * tokens * row;
  std::int64_t count = batch * batch_step;
  Operand o;
  if (s.storage == Storage::one_buffer) {
    EXPECT_EQ(s.q_len, s.kv_len);
    const std::int64_t all = s.q_heads + 2 * s.kv_heads;
    head_step = s.head_dim;
    token_step = all * s.head_dim;
    batch_step = tokens * token_step;
    count = batch * batch_step;
    if (shared_ == nullptr)
      shared_ = std::make_shared<TwinBuffer>(static_cast<std::size_t>(count) * size_of(s.dtype));
    o.buffer = shared_;
    o.offset = static_cast<std::size_t>(head_in_buffer * head_step) * size_of(s.dtype);
  } else {
    if (s.storage == Storage::shared_keys && keys) {
      count = batch_step;
      batch_step = 0;
    }
    o.buffer = std::make_shared<TwinBuffer>(static_cast<std::size_t>(count) * size_of(s.dtype));
  }
  o.view.dtype = s.dtype;
  o.view.rank = packed ? 3 : 4;
  switch (s.layout) {
    case Layout::hnd:
      o.view.shape = {batch, heads, tokens, s.head_dim};
      o.view.strides = {batch_step, head_step, token_step, channel};
      break;
    case Layout::nhd:
      o.view.shape = {batch, tokens, heads, s.head_dim};
      o.view.strides = {batch_step, token_step, head_step, channel};
      break;
    case Layout::thd:
      o.view.shape = {tokens, heads, s.head_dim, 0};
      o.view.strides = {token_step, head_step, channel, 0};
  }
  return o;
}

void AttendCase::fill(Operand& o, std::int64_t heads, std::int64_t tokens, float size, float channel_mean,
                      float mean, float offset) {
  const HeadsView to = heads_view(TensorView(view(o, false)), shape_.layout);
  auto* data = const_cast<void*>(to.data);
  const std::int64_t batch = shape_.layout == Layout::thd || to.batch_stride == 0 ? 1 : shape_.batch;
  std::normal_distribution<float> normal(0.0F, size);
  std::vector<float> line(static_cast<std::size_t>(shape_.head_dim));
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t c = 0; c < shape_.head_dim; ++c)
          line[static_cast<std::size_t>(c)] =
              normal(random_) + channel_mean * static_cast<float>(c % 7 - 3) + mean + offset;
        write_row(data, to.dtype, to.offset(b, h, t), to.channel_stride, line.data(), shape_.head_dim);
      }
    }
  }
}

void AttendCase::fill_padding() {
  if (shape_.lengths.empty() || shape_.storage == Storage::shared_keys) return;
  for (Operand* o : {&k_, &v_}) {
    const HeadsView to = heads_view(TensorView(view(*o, false)), shape_.layout);
    auto* data = const_cast<void*>(to.data);
    const std::vector<float> line(static_cast<std::size_t>(shape_.head_dim), o == &k_ ? kNaN : kInf);
    for (std::int64_t b = 0; b < shape_.batch; ++b) {
      for (std::int64_t h = 0; h < shape_.kv_heads; ++h) {
        for (std::int64_t t = shape_.lengths[static_cast<std::size_t>(b)]; t < shape_.kv_len; ++t)
          write_row(data, to.dtype, to.offset(b, h, t), to.channel_stride, line.data(), shape_.head_dim);
      }
    }
  }
}

AttendCase::Operand AttendCase::extra(Extra kind, bool bias) {
  const AttendShape& s = shape_;
  Operand o;
  const DType dtype = bias ? s.bias_dtype : DType::boolean;
  switch (kind) {
    case Extra::rows:
      o.view = MutableTensorView(nullptr, dtype, {s.q_len, s.kv_len});
      break;
    case Extra::keys:
      o.view = MutableTensorView(nullptr, dtype, {s.batch, 1, 1, s.kv_len});
      break;
    case Extra::heads:
      o.view = MutableTensorView(nullptr, dtype, {s.q_heads, 1, s.kv_len});
      break;
    default:
      o.view = MutableTensorView(nullptr, dtype, {s.batch, s.q_heads, s.q_len, s.kv_len});
  }
  const std::int64_t n = o.view.elements();
  o.buffer = std::make_shared<TwinBuffer>(static_cast<std::size_t>(n) * size_of(dtype));
  std::normal_distribution<float> normal(0.0F, 1.0F);
  std::byte* data = o.buffer->at(false);
  // Some keys are hidden, in the first row all of them.
  const bool empty_row = kind == Extra::rows || kind == Extra::full;
  for (std::int64_t i = 0; i < n; ++i) {
    const bool hidden = (empty_row && i < s.kv_len) || random_() % (bias ? 16 : 4) == 0;
    if (bias) {
      write_element(data, dtype, i, hidden ? -kInf : normal(random_));
    } else {
      data[i] = std::byte{static_cast<unsigned char>(hidden ? 0 : 1)};
    }
  }
  return o;
}

AttentionOptions AttendCase::options(bool on_device) {
  AttentionOptions o;
  o.layout = shape_.layout;
  o.causal = shape_.causal;
  o.window = shape_.window;
  o.scale = shape_.scale;
  o.check_finite = false;
  o.key_splits = on_device ? shape_.key_splits : 1;
  if (shape_.layout == Layout::thd) {
    o.cu_seqlens_q = ints(cu_q_);
    o.cu_seqlens_k = ints(cu_k_);
  } else if (!lengths_.empty()) {
    o.kv_lengths = ints(lengths_);
  }
  if (mask_.buffer != nullptr) o.mask = view(mask_, on_device);
  if (bias_.buffer != nullptr) o.bias = view(bias_, on_device);
  if (absmax_.buffer != nullptr) o.q_absmax = view(absmax_, on_device);
  return o;
}

void AttendCase::send() {
  for (Operand* o : {&q_, &k_, &v_, &mask_, &bias_, &absmax_}) {
    if (o->buffer != nullptr) o->buffer->send();
  }
  for (const bool on_device : {false, true}) {
    const Result<Problem> made =
        make_problem(view(q_, on_device), view(k_, on_device), view(v_, on_device), options(on_device));
    ASSERT_TRUE(made.ok()) << to_text(shape_) << ": " << made.status().message();
    (on_device ? device_ : host_) = *made;
  }
}

Plan AttendCase::make_plan(const Recipe& recipe) const {
  const Result<Plan> made = plan(device_, recipe);
  EXPECT_TRUE(made.ok()) << recipe.name << " " << to_text(shape_) << ": " << made.status().message();
  return made.ok() ? *made : Plan{};
}

/// out or lse on the device.
struct AttendCase::Output {
  std::unique_ptr<GuardedBytes> memory;
  MutableTensorView view;

  Output(const AttendShape& s, bool lse) {
    const bool packed = s.layout == Layout::thd;
    const std::int64_t row = s.head_dim + (s.gaps_out ? 1 : 0);
    if (lse) {
      view = packed ? MutableTensorView(nullptr, DType::f32, {s.q_heads, s.q_len})
                    : MutableTensorView(nullptr, DType::f32, {s.batch, s.q_heads, s.q_len});
    } else {
      const DType dtype = s.f32_out ? DType::f32 : s.dtype;
      view = packed ? MutableTensorView(nullptr, dtype, {s.q_len, s.q_heads, row})
             : s.layout == Layout::hnd
                 ? MutableTensorView(nullptr, dtype, {s.batch, s.q_heads, s.q_len, row})
                 : MutableTensorView(nullptr, dtype, {s.batch, s.q_len, s.q_heads, row});
    }
    memory = std::make_unique<GuardedBytes>(static_cast<std::size_t>(view.elements()) * size_of(view.dtype));
    if (!lse) view.shape[static_cast<std::size_t>(view.rank - 1)] = s.head_dim;
    view.data = memory->data();
    view.device = kGpu;
  }
};

void AttendCase::call(const Plan& plan, Way way, const MutableTensorView& out, const MutableTensorView& lse) {
  const auto expect_ok = [](const Status& s) { EXPECT_TRUE(s.ok()) << s.message(); };
  const auto wait_for = [](std::initializer_list<const GuardedBytes*> buffers) {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (const GuardedBytes* b : buffers) EXPECT_TRUE(b->intact()) << "written beside a buffer of scratch";
  };
  if (way == Way::steps) {
    const GuardedBytes kv_memory(plan.kv_bytes(), true);
    const GuardedBytes q_memory(plan.q_bytes(), true);
    const GuardedBytes workspace(plan.workspace_bytes(), true);
    QuantizedKv kv(kv_memory.data(), kv_memory.bytes());
    QuantizedQ qq(q_memory.data(), q_memory.bytes());
    expect_ok(plan.quantize_kv(device('k'), device('v'), kv));
    expect_ok(plan.quantize_q(device('q'), kv, qq));
    expect_ok(plan.attend(qq, kv, out, lse, workspace.data(), workspace.bytes()));
    wait_for({&kv_memory, &q_memory, &workspace});
    return;
  }
  const bool given = way == Way::given;
  const GuardedBytes memory(given ? plan.run_bytes() : 0, true);
  expect_ok(plan.run(device('q'), device('k'), device('v'), out, lse, given ? memory.data() : nullptr,
                     memory.bytes()));
  wait_for({&memory});
}

AttendResult AttendCase::run(const Plan& plan, Way way) {
  const Output out(shape_, false);
  const Output lse(shape_, true);
  call(plan, way, out.view, shape_.lse ? lse.view : MutableTensorView{});
  EXPECT_TRUE(out.memory->intact()) << "written beside out";
  EXPECT_TRUE(lse.memory->intact()) << "written beside lse";
  check_inputs();

  AttendResult result;
  std::vector<std::byte> bytes = out.memory->read();
  const HeadsView from = heads_view(TensorView(out.view), shape_.layout);
  const std::size_t element = size_of(out.view.dtype);
  for (const Sequence& seq : host_.sequences) {
    for (std::int64_t h = 0; h < host_.q_heads; ++h) {
      for (std::int64_t i = 0; i < seq.q_len; ++i) {
        const std::int64_t row = line(seq, h, i);
        result.o.resize(std::max(result.o.size(), static_cast<std::size_t>((row + 1) * shape_.head_dim)));
        const std::int64_t at = from.offset(seq.batch, h, seq.q_begin + i);
        for (std::int64_t c = 0; c < shape_.head_dim; ++c) {
          const std::int64_t e = at + c * from.channel_stride;
          result.o[static_cast<std::size_t>(row * shape_.head_dim + c)] =
              read_element(bytes.data(), from.dtype, e);
        }
        std::memset(bytes.data() + static_cast<std::size_t>(at) * element, 0xFF,
                    static_cast<std::size_t>(shape_.head_dim) * element);
      }
    }
  }
  EXPECT_TRUE(all_are(bytes, 0, bytes.size(), std::byte{0xFF})) << "the output's gaps were written";
  bytes = lse.memory->read();
  result.lse.resize(bytes.size() / sizeof(float));
  std::memcpy(result.lse.data(), bytes.data(), bytes.size());
  if (!shape_.lse) {
    EXPECT_TRUE(all_are(bytes, 0, bytes.size(), std::byte{0xFF})) << "an LSE that was not asked for";
  }
  return result;
}

void AttendCase::check_inputs() {
  for (const auto& [name, o] : {std::pair{"q", &q_},
                                {"k", &k_},
                                {"v", &v_},
                                {"mask", &mask_},
                                {"bias", &bias_},
                                {"q_absmax", &absmax_}}) {
    if (o->buffer == nullptr) continue;
    EXPECT_TRUE(o->buffer->device->read() == o->buffer->host) << name << " was modified";
  }
}

reference::RowLists AttendCase::sample_rows(std::int64_t budget) const {
  reference::RowLists lists;
  std::int64_t keys = 1;
  for (const Sequence& s : host_.sequences) keys += s.k_len * host_.q_heads;
  const std::int64_t each = std::max<std::int64_t>(6, budget / keys);
  std::mt19937 random(shape_.seed + 1);
  for (const Sequence& s : host_.sequences) {
    std::vector<std::int64_t> rows;
    if (s.q_len <= each) {
      rows.resize(static_cast<std::size_t>(s.q_len));
      std::iota(rows.begin(), rows.end(), 0);
    } else {
      rows = {0, s.q_len - 1};
      for (const std::int64_t border : {64, 192, 128}) {
        for (const std::int64_t row : {border - 1, border}) {
          if (row < s.q_len && static_cast<std::int64_t>(rows.size()) < each) rows.push_back(row);
        }
      }
      while (static_cast<std::int64_t>(rows.size()) < each)
        rows.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(s.q_len)));
      std::sort(rows.begin(), rows.end());
      rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    }
    lists.push_back(std::move(rows));
  }
  return lists;
}

MutableTensorView AttendCase::host_out(std::vector<float>& o) const {
  const auto [batch, heads, tokens, channels] =
      std::tuple{shape_.batch, shape_.q_heads, shape_.q_len, shape_.head_dim};
  o.assign(static_cast<std::size_t>((host_.packed() ? 1 : batch) * heads * tokens * channels), kNaN);
  MutableTensorView v(o.data(), DType::f32, {batch, heads, tokens, channels});
  const auto s = v.strides;  // of [B, Hq, Lq, D]
  if (shape_.layout == Layout::nhd) {
    v.shape = {batch, tokens, heads, channels};
    v.strides = {s[0], s[2], s[1], s[3]};
  } else if (host_.packed()) {
    v.rank = 3;
    v.shape = {tokens, heads, channels, 0};
    v.strides = {s[2], s[1], s[3], 0};
  }
  return v;
}

MutableTensorView AttendCase::host_lse(std::vector<float>& lse) const {
  const std::int64_t lines = (host_.packed() ? 1 : shape_.batch) * shape_.q_heads * shape_.q_len;
  lse.assign(static_cast<std::size_t>(lines), kNaN);
  if (host_.packed()) return {lse.data(), DType::f32, {shape_.q_heads, shape_.q_len}};
  return {lse.data(), DType::f32, {shape_.batch, shape_.q_heads, shape_.q_len}};
}

AttendResult AttendCase::emulate(const Recipe& effective, const reference::RowLists& rows) {
  AttendResult r;
  const Status s =
      reference::emulate_rows(host_, effective, q(), k(), v(), rows, host_out(r.o), host_lse(r.lse));
  EXPECT_TRUE(s.ok()) << s.message();
  return r;
}

AttendResult AttendCase::exact(const reference::RowLists& rows) {
  AttendResult r;
  const Status s = reference::exact_rows(host_, q(), k(), v(), rows, host_out(r.o), host_lse(r.lse));
  EXPECT_TRUE(s.ok()) << s.message();
  return r;
}

double AttendCase::largest_logit() const {
  // Norms of N(0, size^2) rows with their channel means, which K's smoothing takes away again.
  const double d = static_cast<double>(shape_.head_dim);
  const double norm = std::sqrt(d) + 4.0;
  const double mean = 0.2 * static_cast<double>(shape_.k_mean) * std::sqrt(d);
  return std::abs(static_cast<double>(host_.scale)) * (static_cast<double>(shape_.q_size) * norm + mean) *
         (norm + 4.0 * static_cast<double>(shape_.k_mean) * std::sqrt(d) / 2.0);
}

const std::vector<std::string>& gpu_presets() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& p : presets()) {
      if (p.name != "exact" && p.name != "cpu8" && p.name != "auto") list.push_back(p.name);
    }
    list.insert(list.end(), {"turbo.wide", "turbo.wide.forward"});
    return list;
  }();
  return names;
}

Recipe gpu_recipe(const std::string& name) {
  Recipe r = *recipe(name.substr(0, name.find('.')));
  if (name.find(".wide") != std::string::npos) r.key_tile = 96;
  if (name.find(".forward") != std::string::npos) r.key_order = KeyOrder::forward;
  return r;
}

}  // namespace octavo::test
