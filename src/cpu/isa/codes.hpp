// What the cpu8 kernel and the quantizers need of an instruction set beyond 32-bit lanes: 16-bit codes, u8
// weights, and packing of rounded rows. One specialisation an instruction set: codes_portable.hpp,
// codes_avx2.hpp, codes_avx512.hpp.
//
// A vector of codes (C) holds two keys of each row. pack(a, b) narrows with saturation; where it puts which
// lane is its own affair (SIMD packs work in 128-bit pieces), as long as everything comes from pack and goes
// back through row_best or weights.
//
//   C pack(I a, I b)              rows of key j and of key j + 1, clamped to 16 bits
//   C best(C, C)                  larger codes
//   I row_best(C)                 larger of the two keys of each row, 32 bits
//   C hide(C, C key, begin, end)  kLowestCode where the key is outside [begin, end)
//   I weights(codes, stride, top, constants)  cpu8_weight(top - code) of kPack keys, packed as operand of
//   V::dot. `codes` points at
//                                 kPack / 2 vectors, `stride` bytes apart
//   void add_weights(I& sum, I weights)  sum of a row's weights, for at most kSumKeys keys; sum_of() makes
//   s32 of it void dot_keys(I& a0, I& a1, key, q0, q1), void dot_values(I& a0, I& a1, value, w0, w1)  both
//   groups of rows; kGroups is 2 void narrow(I, Element* to)   kLanes integers to elements of Q or K void
//   transpose(rows, pitch, I (&columns)[kTranspose])  kLanes rows of kTranspose 32-bit words, `pitch`
//   elements apart
#pragma once

#include <cstdint>

namespace octavo::cpu {

template <class V>
struct Codes;

/// What saturation leaves of a code far below, and what a hidden key gets.
inline constexpr std::int32_t kLowestCode = -32768;

/// Weights are 0 from 576 steps below the maximum on (numerics/cpu8_table.hpp); farther distances may be cut
/// to this one.
inline constexpr std::int32_t kFarthestStep = 1023;

}  // namespace octavo::cpu
