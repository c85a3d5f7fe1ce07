// Names and sizes of the enums every message uses.
#include "octavo/tensor.hpp"

#include "octavo/attention.hpp"
#include "octavo/status.hpp"

namespace octavo {

const char* to_string(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid argument";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::io_error:
      return "input/output error";
    case StatusCode::out_of_memory:
      return "out of memory";
    case StatusCode::internal:
      return "internal error";
  }
  return "unknown status";
}

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    case DType::e4m3:
    case DType::i8:
    case DType::u8:
    case DType::boolean:
      return 1;
    case DType::i64:
      return 8;
  }
  return 0;
}

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::e4m3:
      return "e4m3";
    case DType::i8:
      return "i8";
    case DType::u8:
      return "u8";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::boolean:
      return "bool";
  }
  return "unknown dtype";
}

const char* to_string(Layout layout) {
  switch (layout) {
    case Layout::hnd:
      return "hnd";
    case Layout::nhd:
      return "nhd";
    case Layout::thd:
      return "thd";
  }
  return "unknown layout";
}

const char* version() { return OCTAVO_VERSION; }

}  // namespace octavo
