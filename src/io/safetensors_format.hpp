// What reader and writer must agree on: names of dtypes, limits and sizes. Only src/io includes this.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "octavo/tensor.hpp"

namespace octavo::io {

constexpr std::size_t kLengthBytes = 8;                 // the header's length, little-endian
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as in the reference implementation
constexpr std::size_t kMaxRank = 64;  // numpy's limit, so that a hostile shape cannot cost gigabytes
constexpr std::string_view kMetadataKey = "__metadata__";

struct DTypeName {
  DType dtype;
  std::string_view name;
};

/// The dtypes of the format that octavo knows, in the order in which the reference implementation lays them
/// out: widest alignment first, so that every tensor of a file it writes is aligned, and the same order here
/// makes files of equal content equal.
constexpr std::array<DTypeName, 9> kDTypeNames{{
    {DType::i64, "I64"},
    {DType::f32, "F32"},
    {DType::i32, "I32"},
    {DType::bf16, "BF16"},
    {DType::f16, "F16"},
    {DType::e4m3, "F8_E4M3"},
    {DType::i8, "I8"},
    {DType::u8, "U8"},
    {DType::boolean, "BOOL"},
}};

/// Index into kDTypeNames.
std::size_t layout_rank(DType dtype);
std::string_view file_name_of(DType dtype);
std::optional<DType> dtype_from_file_name(std::string_view name);
/// "F32, F16, ..."
std::string supported_dtypes();

/// "[2, 3]"
std::string shape_text(std::span<const std::int64_t> shape);

/// Bytes of a row-major tensor; nullopt when a dimension is negative, or when the bytes, or the strides (the
/// product of the dimensions that are not zero), exceed 63 bits.
std::optional<std::uint64_t> byte_count(std::span<const std::int64_t> shape, DType dtype);

}  // namespace octavo::io
